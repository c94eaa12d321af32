"""onnxruntime-genai 0.18.0: the model builder drops the sliding window of a Mistral.

An answer is "explained" if transformers gives it too without the window.
"""

import numpy as np
import onnxruntime_genai as og
from setup_greedy import greedy
from setup_onnxruntime import built_from, tiny
from transformers import MistralConfig

NUM = 6
model = tiny(MistralConfig, head_dim=16, sliding_window=6, pad_token_id=0)
built = built_from(model)


def right_with(prompt: list[int], window: int | None) -> list[int]:
    model.config.sliding_window = window
    return greedy(model, prompt, NUM)


def generated(prompt: list[int]) -> list[int]:
    loaded = og.Model(built)
    params = og.GeneratorParams(loaded)
    params.set_search_options(max_length=len(prompt) + NUM, do_sample=False)
    generator = og.Generator(loaded, params)
    generator.append_tokens(np.array(prompt, dtype=np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return generator.get_sequence(0)[len(prompt) :].tolist()


is_wrong = False
for length in (3, 6, 8, 12):
    prompt = [(37 * i + 11) % 256 for i in range(length)]
    got, right = generated(prompt), right_with(prompt, 6)
    told = "right" if got == right else "wrong"
    if got != right and got == right_with(prompt, None):
        told += ", explained"
    print(f"window 6, prompt of {length}: {got}, should be {right} ({told})")
    is_wrong |= got != right
raise SystemExit(is_wrong)
