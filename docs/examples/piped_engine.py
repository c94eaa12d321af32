"""A complete engine behind a pipe, for `--engine="cmd:python docs/examples/piped_engine.py"`.

It imports nothing of Batchproof: put your own engine in the place of `generate`. Each request is
answered alone, which is right and slow. `docs/piped_engines.md` tells the protocol.
"""

import json
import os
import sys
from functools import cache

answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # whatever a library prints goes to stderr: stdout is for answers alone

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

engines = {}


@cache  # many engines are built on one checkpoint
def load(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def refusal(model, config, request):
    """Why this request cannot be served, naming value and rule; None if it can."""
    sizes = model.config.get_text_config()
    limit = min(sizes.max_position_embeddings, config["max_model_len"] or sizes.max_position_embeddings)
    prompt, cap = request["prompt_token_ids"], request["max_new_tokens"]
    unknown = [token for token in prompt if not 0 <= token < sizes.vocab_size]
    if not prompt:
        return "the prompt is empty, but must hold at least one token"
    if unknown:
        return f"prompt token {unknown[0]} is unknown: ids are 0 to {sizes.vocab_size - 1}"
    if cap < 1:
        return f"max_new_tokens is {cap}, but must be at least 1"
    if len(prompt) + cap > limit:
        return f"{len(prompt)} prompt tokens + {cap} new ones = {len(prompt) + cap}, above {limit}"
    return None


@torch.inference_mode()
def complete(model, request):
    """Greedy decoding of one prompt: the new tokens, and why they end."""
    fed, new, cache = request["prompt_token_ids"], [], None
    while True:
        output = model(input_ids=torch.tensor([fed]), past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        new.append(int(output.logits[0, -1].argmax()))
        fed = new[-1:]
        if new[-1] in request["eos_token_ids"]:
            return new, "stop"
        if len(new) == request["max_new_tokens"]:
            return new, "length"


def generate(engine, requests):
    model, config = engine
    completions, live = [], set()
    for request in requests:
        request_id = request["request_id"]
        error = refusal(model, config, request)
        if error is None and request_id in live:
            error = f"request_id {request_id!r} is live already"
        tokens, reason = ([], "error") if error else complete(model, request)
        if not error:
            live.add(request_id)
        completions.append(
            {"request_id": request_id, "token_ids": tokens, "finish_reason": reason, "error": error}
        )
    return {"completions": completions}


def answer(question):
    op, number = question["op"], question.get("engine")
    if op == "hello":
        return {"name": "example", "version": "1"}
    if op == "build":
        engines[number] = load(question["model"], question["dtype"]), question["config"]
        return {}
    if op == "generate":
        return generate(engines[number], question["requests"])
    if op == "close":
        engines.pop(number, None)
        return {}
    return {"error": f"unknown op {op!r}"}


for line in sys.stdin:
    try:
        given = answer(json.loads(line))
    except Exception as error:
        given = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(given), file=answers, flush=True)
