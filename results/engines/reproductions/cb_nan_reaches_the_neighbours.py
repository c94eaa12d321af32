"""Continuous batching of transformers lets one request's NaN reach all others of its step.

The embedding of one token is infinite, as an overflow in a 16-bit model would make it.
"""

import torch
import transformers
from setup_cb import model, new_manager

model.model.embed_tokens.weight.data[95] = torch.inf
good = {"good 1": [61, 7, 33, 90], "good 2": [8, 52, 17]}


def served(asked: dict[str, list[int]]) -> dict[str, list[int]]:
    manager = new_manager(num_blocks=8, max_batch_tokens=64)
    for name, prompt in asked.items():  # before the thread starts, so that they share its first step
        manager.add_request(prompt, request_id=name, max_new_tokens=4)
    manager.start()
    given = {}
    while len(given) < len(asked) and manager.is_running():
        output = manager.get_result(timeout=1)
        if output is not None:
            given[output.request_id] = output.generated_tokens
    manager.stop()
    return given


alone, beside = served(good), served({**good, "bad": [5, 95, 6]})
print("transformers", transformers.__version__, "attention", model.config._attn_implementation)
for name in good:
    print(f"  {name}: alone {alone[name]}, beside a request with NaN {beside[name]}")
is_broken = any(alone[name] != beside[name] for name in good)
print("REPRODUCED: they are answered from NaN" if is_broken else "not reproduced")
raise SystemExit(is_broken)
