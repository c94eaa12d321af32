"""Weights of constructed models that are made of bits."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from batchproof.models.hash_tables import random_bits, shuffled


def signs(bits: Iterable[int]) -> Tensor:
    """Returns bits as +1 (for 0) and -1 (for 1): (len(bits),) float32."""
    return 1.0 - 2.0 * torch.tensor([*bits], dtype=torch.float32, device="cpu")


def signed_permutation(label: str, size: int) -> Tensor:
    """Returns a permutation matrix with random signs, fixed by `label`: (size, size) float32."""
    order = shuffled(f"{label} / order", size)
    identity = torch.eye(size, dtype=torch.float32, device="cpu")
    return signs(random_bits(f"{label} / signs", size))[:, None] * identity[order]
