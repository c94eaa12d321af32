"""onnxruntime-genai 0.18.0: the model builder drops the sliding window of a Mistral.

An answer is "explained" if transformers gives it too without the window.
"""

import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime_genai as og
import torch
import transformers

NUM = 6
shape = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.2}
torch.manual_seed(0)
config = transformers.MistralConfig(head_dim=16, sliding_window=6, **shape, **heads, **special)
model = transformers.AutoModelForCausalLM.from_config(config).eval()
scratch = tempfile.TemporaryDirectory()
given, built = f"{scratch.name}/given", f"{scratch.name}/built"
model.save_pretrained(given)
words = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "t")
transformers.GPT2Tokenizer(vocab={"t": 0}, merges=[], **words).save_pretrained(given)
builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", "fp32", "-e", "cpu"]
subprocess.run([*builder, "-i", given, "-o", built, "-c", given], capture_output=True, check=True)


def greedy(prompt: list[int], window: int | None) -> list[int]:
    model.config.sliding_window = window
    ids = torch.tensor([prompt])
    for _ in range(NUM):
        logits = model(ids, use_cache=False).logits[:, -1:]
        ids = torch.cat([ids, logits.argmax(-1)], dim=1)
    return ids[0, len(prompt) :].tolist()


def answered(prompt: list[int]) -> list[int]:
    loaded = og.Model(built)
    params = og.GeneratorParams(loaded)
    params.set_search_options(max_length=len(prompt) + NUM, do_sample=False)
    generator = og.Generator(loaded, params)
    generator.append_tokens(np.array(prompt, dtype=np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return generator.get_sequence(0)[len(prompt) :].tolist()


is_wrong = False
for length in (3, 6, 8, 12):
    prompt = [(37 * i + 11) % 256 for i in range(length)]
    got, right = answered(prompt), greedy(prompt, 6)
    told = "right" if got == right else "wrong"
    if got != right and got == greedy(prompt, None):
        told += ", explained"
    print(f"window 6, prompt of {length}: {got}, should be {right} ({told})")
    is_wrong |= got != right
sys.exit(is_wrong)
