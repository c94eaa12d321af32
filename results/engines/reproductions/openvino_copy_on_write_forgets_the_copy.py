"""openvino-genai 2026.4.1: prefix caching without dynamic_split_fuse does not copy a shared block."""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from setup_openvino import folder

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
PROMPT = np.random.RandomState(0).randint(1, 256, (1, 32)).astype(np.int64)  # one block
SETTINGS = genai.GenerationConfig(max_new_tokens=6, ignore_eos=True, eos_token_id=0)


def answers(prefix_caching: bool) -> list[list[int]]:
    """Of the same prompt twice; the second comes when the first's is computed."""
    limits = genai.SchedulerConfig()
    limits.num_kv_blocks = 20
    limits.dynamic_split_fuse = False
    limits.enable_prefix_caching = prefix_caching
    pipe = genai.ContinuousBatchingPipeline(folder, limits, "CPU", F32)
    first = pipe.add_request(0, ov.Tensor(PROMPT), SETTINGS)
    pipe.step()
    second = pipe.add_request(1, ov.Tensor(PROMPT), SETTINGS)
    while pipe.has_non_finished_requests():
        pipe.step()
    return [handle.read_all()[0].generated_ids for handle in (first, second)]


got, right = answers(True), answers(False)
print(f"the same prompt twice: got {got[0]} and {got[1]}, should be {right[0]} and {right[1]}")
sys.exit(got != right)
