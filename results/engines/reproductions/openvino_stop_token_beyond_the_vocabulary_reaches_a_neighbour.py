"""openvino-genai 2026.4.1: a stop token beyond the vocabulary is written behind the logits."""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from setup_openvino import folder

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
VOCAB_SIZE = 256
PROMPT = ov.Tensor(np.array([[11, 12, 13, 14]], dtype=np.int64))
PLAIN = genai.GenerationConfig(max_new_tokens=3, ignore_eos=True, eos_token_id=0)


def beside(settings: genai.GenerationConfig) -> list[int]:
    """Returns the answer to the prompt behind a request with these settings."""
    pipe = genai.ContinuousBatchingPipeline(folder, genai.SchedulerConfig(), "CPU", F32)
    handles = [pipe.add_request(number, PROMPT, each) for number, each in enumerate((settings, PLAIN))]
    while pipe.has_non_finished_requests():
        pipe.step()
    answer: list[int] = handles[1].read_all()[0].generated_ids
    return answer


def stopped(token: int) -> genai.GenerationConfig:
    settings = genai.GenerationConfig(max_new_tokens=3, min_new_tokens=1)
    settings.stop_token_ids, settings.eos_token_id = {token}, token
    return settings


right = beside(PLAIN)
beyond = VOCAB_SIZE + right[0]
got = beside(stopped(beyond))
print(f"beside a request with stop token {beyond} of {VOCAB_SIZE}: {got}, should be {right}", flush=True)
sys.exit(got != right)
