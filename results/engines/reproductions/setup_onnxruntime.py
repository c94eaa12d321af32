"""A tiny model with random weights, as the library's builder makes it, and what an Engine answers."""

import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime_genai as og
import torch
import transformers

SHAPE = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0,
}
SCRATCH = tempfile.TemporaryDirectory()


def tiny(kind: type = transformers.LlamaConfig, **more: object) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = kind(**SHAPE, initializer_range=0.2, **more)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def built_from(model: transformers.PreTrainedModel) -> str:
    given, built = f"{SCRATCH.name}/given", f"{SCRATCH.name}/built"
    model.save_pretrained(given)
    words = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "t")
    transformers.GPT2Tokenizer(vocab={"t": 0}, merges=[], **words).save_pretrained(given)
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", "fp32", "-e", "cpu"]
    subprocess.run([*builder, "-i", given, "-o", built, "-c", given], capture_output=True, check=True)
    return built


def begun(engine: og.Engine, prompt: list[int], num: int) -> og.Request:
    request = engine.create_request()
    options = og.TurnOptions(request)
    options.set_max_generated_tokens(num)
    request.begin_turn(np.array(prompt, dtype=np.int32), options)
    return request


def answered(engine: og.Engine, num: int, *prompts: list[int]) -> list:
    """What becomes of these prompts in one batch: tokens, or the name of an error, or that of the Engine."""
    requests, answers = [], [[] for _ in prompts]
    try:
        for prompt in prompts:
            requests.append(begun(engine, prompt, num))
        while engine.has_pending_requests():
            for event in engine.run(engine.create_event_buffer(16)):
                token = event.error_code.name if event.token is None else event.token
                answers[requests.index(event.request)].append(token)
    except RuntimeError as error:
        return [str(error)]
    return answers
