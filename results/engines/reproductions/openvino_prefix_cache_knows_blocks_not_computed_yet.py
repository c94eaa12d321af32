"""openvino-genai 2026.4.1: with prefix caching, blocks are reused that were not computed yet."""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from setup_openvino import folder

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
TOKENS = np.random.RandomState(0).randint(1, 256, (1, 21)).astype(np.int64)
SETTINGS = genai.GenerationConfig(max_new_tokens=6, ignore_eos=True, eos_token_id=0)


def second(prefix_caching: bool, cancelled: bool) -> list[int]:
    """The answer to 21 tokens, while 20 of them are another's prompt, of which 8 were computed."""
    limits = genai.SchedulerConfig()
    limits.num_kv_blocks = 20
    limits.max_num_batched_tokens = 8
    limits.enable_prefix_caching = prefix_caching
    pipe = genai.ContinuousBatchingPipeline(folder, limits, "CPU", F32)
    first = pipe.add_request(0, ov.Tensor(TOKENS[:, :20]), SETTINGS)
    pipe.step()
    if cancelled:
        first.cancel()
    handle = pipe.add_request(1, ov.Tensor(TOKENS), SETTINGS)
    while pipe.has_non_finished_requests():
        pipe.step()
    return handle.read_all()[0].generated_ids


wrong = False
for case, cancelled in (("still running", False), ("cancelled", True)):
    got, right = second(True, cancelled), second(False, cancelled)
    print(f"first {case}: the second got {got}, should be {right}")
    wrong |= got != right
sys.exit(wrong)
