"""onnxruntime-genai 0.18.0: Config.overlay appends a list of EOS ids instead of replacing them.

Exit status 1: reproduced. `Int_Array_Element` in src/config.cpp (read at 0.16.0-dev) appends each
element of a list to what genai_config.json gave; a single number is assigned.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

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


ids = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=8, do_sample=False)
right = ids[0, 3:].tolist()
path = Path(built, "genai_config.json")
content = json.loads(path.read_text())
content["model"]["eos_token_id"] = right[4]
path.write_text(json.dumps(content))
print("without an EOS:", right, "- genai_config.json has the EOS", right[4])
is_wrong = False
for eos, num in ((right[6], 6), ([right[2]], 2), ([right[6]], 6), ([], 8)):
    settings = og.Config(built)
    settings.overlay(json.dumps({"model": {"eos_token_id": eos}}))
    engine = og.Engine(og.Model(settings))
    request = begun(engine, [1, 2, 3], 8)
    events = []
    while engine.has_pending_requests():
        events += [event.token for event in engine.run(engine.create_event_buffer(16))]
    tokens = [token for token in events if token is not None]  # the EOS itself is none
    print(f"overlay {eos}: {tokens}, should be {right[:num]}")
    is_wrong |= tokens != right[:num]
sys.exit(is_wrong)
