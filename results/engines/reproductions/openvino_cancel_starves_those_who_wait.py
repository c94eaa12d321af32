"""openvino-genai 2026.4.1: a cancel makes the pipeline give up requests that wait for blocks."""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from setup_openvino import folder

limits = genai.SchedulerConfig()
limits.num_kv_blocks = 2  # 64 tokens
pipe = genai.ContinuousBatchingPipeline(folder, limits, "CPU")


def add(number: int, length: int, cap: int):
    prompt = np.random.RandomState(number).randint(1, 256, (1, length)).astype(np.int64)
    settings = genai.GenerationConfig(max_new_tokens=cap, ignore_eos=True, eos_token_id=0)
    return pipe.add_request(number, ov.Tensor(prompt), settings)


long = add(0, 40, 20)  # takes both blocks
pipe.step()
waiting = add(1, 5, 3)  # needs one
pipe.step()
print(f"before the cancel: waiting is {waiting.get_status().name}")
long.cancel()
while pipe.has_non_finished_requests():
    pipe.step()
served = waiting.get_status() == genai.GenerationStatus.FINISHED
print(f"after the cancel: waiting is {waiting.get_status().name}, should be FINISHED")
later = add(2, 5, 3)
while pipe.has_non_finished_requests():
    pipe.step()
print(f"one like it that came later is {later.get_status().name}")
sys.exit(not served)
