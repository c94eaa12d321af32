"""openvino-genai 2026.4.1: a request that the pool cannot hold takes all along that wait behind it."""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from setup_openvino import folder

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
SETTINGS = genai.GenerationConfig(max_new_tokens=3, ignore_eos=True, eos_token_id=0)


def ends(lengths: list[int]) -> list[str]:
    limits = genai.SchedulerConfig()
    limits.num_kv_blocks = 1
    pipe = genai.ContinuousBatchingPipeline(folder, limits, "CPU", F32)
    random = np.random.RandomState(0)
    handles = [
        pipe.add_request(number, ov.Tensor(random.randint(1, 256, (1, length))), SETTINGS)
        for number, length in enumerate(lengths)
    ]
    while pipe.has_non_finished_requests():
        pipe.step()
    return [str(handle.get_status()).removeprefix("GenerationStatus.") for handle in handles]


got = ends([40, 3, 9])
print(f"prompts of 40, 3 and 9 tokens: {got}; of 3 and 9: {ends([3, 9])}")
sys.exit(got[1:] != ["FINISHED", "FINISHED"])
