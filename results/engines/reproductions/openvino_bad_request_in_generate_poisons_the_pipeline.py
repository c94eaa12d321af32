"""openvino-genai 2026.4.1: generate() that refuses one request of a call leaves the others behind."""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from setup_openvino import folder

SETTINGS = genai.GenerationConfig(max_new_tokens=3, ignore_eos=True, eos_token_id=0)
GOOD = ov.Tensor(np.array([[1, 2, 3]], dtype=np.int64))
EMPTY = ov.Tensor(np.zeros((1, 0), dtype=np.int64))

limits = genai.SchedulerConfig()
limits.num_kv_blocks = 40
pipe = genai.ContinuousBatchingPipeline(folder, limits, "CPU")


def told(*prompts: ov.Tensor) -> str:
    try:
        results = pipe.generate([*prompts], [SETTINGS] * len(prompts))
        return str([result.m_generation_ids[0] for result in results])
    except RuntimeError as error:
        return f"raised: {str(error).strip().splitlines()[-1]}"


right = told(GOOD)
print("good:", right)
print("good and empty:", told(GOOD, EMPTY))
after = told(GOOD)
print(f"good again: {after}, should be {right}")
print("and again:", told(GOOD))
sys.exit(after != right)
