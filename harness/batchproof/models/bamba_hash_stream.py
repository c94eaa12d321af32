"""The residual stream of `bamba-hash`: who has which channels, in which unit."""

from __future__ import annotations

import torch
from torch import Tensor

from batchproof.models.bamba_hash_oracle import STATE_BITS

WIDTH = 64
BITS = STATE_BITS
STATE = slice(0, BITS)
WORDS = slice(BITS, 2 * BITS)
SOFT = slice(2 * BITS, 3 * BITS)
CONSTANT = 3 * BITS
IDENTITY = torch.eye(BITS, dtype=torch.float32, device="cpu")

CONSTANT_VALUE = 4096.0
"""The root mean square is 4096 / sqrt(64) = 512, but for a share of 3e-5 where all words are 256."""
WORD_UNIT = 1 / 32
"""What a one is in `words`. Less than a bit, since counts must not change the norm; normalized it is
2^-5 / 2^9 = 2^-14, the smallest number that is normal in float16."""


def norm_weight() -> Tensor:
    """Returns the weight (width,) of every RMSNorm: behind it a bit is +-1, a word's unit 1, a soft
    channel what it was, and the constant 1."""
    scale = CONSTANT_VALUE / WIDTH**0.5
    weight = torch.full((WIDTH,), scale, dtype=torch.float32, device="cpu")
    weight[WORDS] = scale / WORD_UNIT
    weight[CONSTANT] = scale / CONSTANT_VALUE
    return weight
