"""openvino-genai 2026.4.1: with prefix caching, three requests that fit one by one are all given
up."""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from setup_openvino import folder

TOKENS = np.random.RandomState(1).randint(1, 256, (1, 11)).astype(np.int64)
ALIKE = np.random.RandomState(0).randint(1, 256, (1, 97)).astype(np.int64)
ARRIVALS = {0: (TOKENS, 55), 10: (ALIKE, 1), 11: (ALIKE[:, :35], 1)}  # step: prompt, cap


def served(prefix_caching: bool) -> list[str]:
    """The last begins as the one before it does."""
    limits = genai.SchedulerConfig()
    limits.num_kv_blocks = 5  # 160 tokens
    limits.max_num_batched_tokens = 8
    limits.enable_prefix_caching = prefix_caching
    pipe = genai.ContinuousBatchingPipeline(folder, limits, "CPU")
    handles, step = [], 0
    while step <= max(ARRIVALS) or pipe.has_non_finished_requests():
        if step in ARRIVALS:
            prompt, cap = ARRIVALS[step]
            settings = genai.GenerationConfig(max_new_tokens=cap, ignore_eos=True, eos_token_id=0)
            handles.append(pipe.add_request(step, ov.Tensor(prompt), settings))
        pipe.step()
        step += 1
    return [handle.get_status().name for handle in handles]


got, right = served(True), served(False)
print(f"with prefix caching: {got}, should be {right} as without")
sys.exit(got != right)
