"""A tiny Llama with random weights, as the library's builder makes it, in `built`, and a request of the Engine."""

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
