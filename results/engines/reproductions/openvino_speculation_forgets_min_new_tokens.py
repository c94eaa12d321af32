"""openvino-genai 2026.4.1: with speculation, answers end before min_new_tokens."""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from setup_openvino import folder

F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
MINIMUM = 9


def answer(prompt: np.ndarray, lookup: bool, eos: int | None = None) -> list[int]:
    properties = F32 | ({"prompt_lookup": True} if lookup else {})
    pipe = genai.ContinuousBatchingPipeline(folder, genai.SchedulerConfig(), "CPU", properties)
    settings = genai.GenerationConfig(max_new_tokens=16, ignore_eos=eos is None, eos_token_id=eos or 0)
    if eos is not None:
        settings.min_new_tokens = MINIMUM
    if lookup:
        settings.num_assistant_tokens, settings.max_ngram_size = 4, 2
    handle = pipe.add_request(0, ov.Tensor(prompt), settings)
    while pipe.has_non_finished_requests():
        pipe.step()
    return handle.read_all()[0].generated_ids


wrong = False
for seed in range(8):
    prompt = np.random.RandomState(seed).randint(1, 256, (1, 20))
    eos = answer(prompt, lookup=False)[2]
    got, right = answer(prompt, lookup=True, eos=eos), answer(prompt, lookup=False, eos=eos)
    if got != right:
        print(f"prompt {seed}, EOS {eos}: {len(got)} tokens of at least {MINIMUM}: {got}, should be {right}")
    wrong |= got != right
sys.exit(wrong)
