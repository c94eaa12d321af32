"""onnxruntime-genai 0.18.0: engine.static_batching.max_batch_size is reported, but not kept.

Exit status 1: reproduced. Batches are of four, whatever it says. `StaticBatchScheduler::Schedule` in
src/engine/scheduler.cpp (read at 0.16.0-dev) has a constant static_batch_size of 4.
"""

import json
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime_genai as og
import torch
import transformers

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


def begun(engine: og.Engine, prompt: list[int], num: int) -> og.Request:
    request = engine.create_request()
    options = og.TurnOptions(request)
    options.set_max_generated_tokens(num)
    request.begin_turn(np.array(prompt, dtype=np.int32), options)
    return request


is_wrong = False
for size in (1, 2, 4, 8):
    settings = og.Config(built)
    settings.overlay(json.dumps({"engine": {"static_batching": {"max_batch_size": size}}}))
    engine = og.Engine(og.Model(settings))
    requests = [begun(engine, [1, 2, i], 2) for i in range(8)]
    ran = []
    while engine.has_pending_requests():
        ran.append(len(engine.run(engine.create_event_buffer(16))))
    told = engine.get_capabilities().configured_max_batch_size
    print(f"max_batch_size {size}, reported as {told}: 8 requests, answered by each run {ran}")
    is_wrong |= max(ran) != size
print("no run should answer more requests than max_batch_size, and the first as many")
sys.exit(is_wrong)
