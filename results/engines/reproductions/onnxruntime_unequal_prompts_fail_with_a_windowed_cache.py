"""onnxruntime-genai 0.18.0: with a windowed cache, unequal prompts in one batch end the Engine."""

import onnxruntime_genai as og
from setup_greedy import greedy
from setup_onnxruntime import answered, built_from, tiny
from transformers import Qwen2Config

windowed = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}
model = tiny(Qwen2Config, pad_token_id=0, **windowed)
built = built_from(model)
is_wrong = False
for lengths in ([12], [3], [4, 4], [12, 3]):
    prompts = [[(37 * i + 11 + length) % 255 + 1 for i in range(length)] for length in lengths]
    engine, right = og.Engine(og.Model(built)), [greedy(model, prompt, 6) for prompt in prompts]
    got = answered(engine, 6, *prompts)
    print(f"prompts of {lengths}: {got}, should be {right}")
    is_wrong |= got != right
print("another request, then:", *answered(engine, 6, [1, 2, 3]))
raise SystemExit(is_wrong)
