"""openvino-genai 2026.4.1: a request_id given twice is taken, and every later step fails."""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from setup_openvino import folder

PROMPT = np.array([[1, 2, 3]], dtype=np.int64)
SETTINGS = genai.GenerationConfig(max_new_tokens=3, ignore_eos=True, eos_token_id=0)
STEPS = 6

limits = genai.SchedulerConfig()
limits.num_kv_blocks = 40
pipe = genai.ContinuousBatchingPipeline(folder, limits, "CPU")
first = pipe.add_request(0, ov.Tensor(PROMPT), SETTINGS)
try:
    second = pipe.add_request(0, ov.Tensor(PROMPT), SETTINGS)  # a handle that is dropped cancels
except (RuntimeError, ValueError) as error:
    print("the second of that id is refused, as it should be:", error)
innocent = pipe.add_request(1, ov.Tensor(PROMPT), SETTINGS)
for step in range(STEPS):
    try:
        if pipe.has_non_finished_requests():
            pipe.step()
    except RuntimeError as error:
        print(f"step {step} raised: {str(error).strip().splitlines()[-1]}")
finished = innocent.get_status() == genai.GenerationStatus.FINISHED
print(f"after {STEPS} steps the innocent one is {innocent.get_status().name}, should be FINISHED")
sys.exit(not finished)
