"""onnxruntime-genai 0.18.0: an unknown token id ends the Engine for all; -1 is answered."""

import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime_genai as og
import torch
import transformers

NUM = 4
torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=0, initializer_range=0.2,
)
model = transformers.LlamaForCausalLM(config).eval()
scratch = tempfile.TemporaryDirectory()
given, built = f"{scratch.name}/given", f"{scratch.name}/built"
model.save_pretrained(given)
words = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "t")
transformers.GPT2Tokenizer(vocab={"t": 0}, merges=[], **words).save_pretrained(given)
builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", "fp32", "-e", "cpu"]
subprocess.run([*builder, "-i", given, "-o", built, "-c", given], capture_output=True, check=True)


def greedy(prompt: list[int], num: int) -> list[int]:
    ids = model.generate(torch.tensor([prompt]), max_new_tokens=num, do_sample=False)
    return ids[0, len(prompt) :].tolist()


def answered(engine: og.Engine, *prompts: list[int]) -> list:
    requests, answers = [], [[] for _ in prompts]
    try:
        for prompt in prompts:
            requests.append(engine.create_request())
            options = og.TurnOptions(requests[-1])
            options.set_max_generated_tokens(NUM)
            requests[-1].begin_turn(np.array(prompt, dtype=np.int32), options)
        while engine.has_pending_requests():
            for event in engine.run(engine.create_event_buffer(16)):
                token = event.error_code.name if event.token is None else event.token
                answers[requests.index(event.request)].append(token)
    except RuntimeError as error:
        return [str(error)]
    return answers


engine = og.Engine(og.Model(built))
good, right = [1, 2, 3], greedy([1, 2, 3], NUM)
(below,) = answered(engine, [1, -1])
print("[1, -1]:", below, "as [1, 255] has", greedy([1, 255], NUM), "- should be refused")
print("good beside [1, 256]:", answered(engine, good, [1, 256]))
(after,) = answered(engine, good)
print(f"good, afterwards: {after!r}, should be {right}")
sys.exit(after != right or isinstance(below, list))
