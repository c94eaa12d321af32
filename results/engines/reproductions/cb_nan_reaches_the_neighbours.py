"""Continuous batching of transformers lets one request's NaN reach all others of its step.

The embedding of one token is infinite, as an overflow in a 16-bit model would make it.
"""

import torch
from setup_cb import model
from setup_cb_step import outputs

model.model.embed_tokens.weight.data[95] = torch.inf
good = {"good 1": [61, 7, 33, 90], "good 2": [8, 52, 17]}
alone, beside = outputs(good, 4), outputs({**good, "bad": [5, 95, 6]}, 4)
for name in good:
    one, other = alone[name].generated_tokens, beside[name].generated_tokens
    print(f"  {name}: alone {one}, beside a request with NaN {other}")
is_broken = any(alone[name].generated_tokens != beside[name].generated_tokens for name in good)
print("REPRODUCED: they are answered from NaN" if is_broken else "not reproduced")
raise SystemExit(is_broken)
