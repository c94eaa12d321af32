"""The precision an engine computes in, where that is not the dtype of the model it serves.

Some engines take float32 weights and compute in bfloat16, or keep keys and values in 8 bits. That is a
choice, not a fault, so rounding may carry such an engine farther. How far is measured (`oracle.py`):
the reference answers at that precision, and E is its distance from float64 of the served weights. A
constructed model needs no bound: its margins exceed this rounding, so every token must match exactly at
every precision.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from batchproof.models.catalogue import ModelUnderTest, moved, resolve_dtype
from batchproof.validation.values import one_of

KV_CACHES = ("auto", "int8")
ROUNDED_ATTENTION = "batchproof_int8_cache"
NUM_LEVELS = 255  # steps between the ends of what 8 bits hold


@dataclass(frozen=True, slots=True)
class Precision:
    """`compute` None: the dtype of the model under test."""

    compute: torch.dtype | None = None
    is_cache_int8: bool = False

    def of(self, subject: ModelUnderTest) -> str:
        """Returns the name of the dtype whose rounding counts."""
        return str(self.compute or subject.model.dtype).removeprefix("torch.")

    def coarse(self, subject: ModelUnderTest) -> PreTrainedModel:
        """Returns the model under test, or a copy that rounds at this precision."""
        model = subject.model
        if self == AS_SERVED:
            return model
        model = moved(copy.deepcopy(model), model.device, self.compute or model.dtype)
        if self.is_cache_int8:
            _register()
            model.set_attn_implementation(ROUNDED_ATTENTION)
        return model

    def __str__(self) -> str:
        """Empty for the model's own precision."""
        compute = str(self.compute).removeprefix("torch.") if self.compute else ""
        return ", ".join(filter(None, (compute, "int8 keys and values" if self.is_cache_int8 else "")))


AS_SERVED = Precision()


def resolve_precision(compute: str | None, kv_cache: str) -> Precision:
    """Returns the precision for `--compute-dtype` and `--kv-cache-dtype`. Raises `UsageError`."""
    one_of("--kv-cache-dtype", kv_cache, KV_CACHES)
    dtype = None if compute is None else resolve_dtype(compute, "--compute-dtype")
    return Precision(dtype, kv_cache == "int8")


def _register() -> None:
    AttentionInterface.register(ROUNDED_ATTENTION, _attend)
    AttentionMaskInterface.register(ROUNDED_ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def _attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any
) -> Any:
    """SDPA over keys and values as an 8-bit cache returns them. Rounding once is the same as rounding
    at each step, since the rounded values do not change."""
    return ALL_ATTENTION_FUNCTIONS["sdpa"](
        module, query, in_8_bits(key), in_8_bits(value), mask, **more
    )


def in_8_bits(states: Tensor) -> Tensor:
    """Rounds `states`, `(..., head_dim)`, to the nearest of 256 values between the least and the
    greatest of each token and head: asymmetric 8-bit quantization. The shape stays."""
    low, high = states.amin(-1, keepdim=True), states.amax(-1, keepdim=True)
    unit = ((high - low) / NUM_LEVELS).clamp_min(torch.finfo(states.dtype).tiny)
    return ((states - low) / unit).round() * unit + low
