"""How finely an engine computes, where that is not the dtype of the model it serves.

Some engines are given float32 weights and compute in bfloat16, or keep keys and values in 8 bits. That
is a choice and no fault, so rounding may carry such an engine further. How far is measured, as always
(`oracle.py`): the reference itself answers as coarsely, and E is its distance from float64 of the
weights that were served. A constructed model needs no bound: its margins stand far above this
rounding, so its tokens must be right to the last one, in every precision.
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
    """None: as the model under test."""

    compute: torch.dtype | None = None
    is_cache_int8: bool = False

    def of(self, subject: ModelUnderTest) -> str:
        """The dtype whose rounding counts, by name."""
        return str(self.compute or subject.model.dtype).removeprefix("torch.")

    def coarse(self, subject: ModelUnderTest) -> PreTrainedModel:
        """The model under test, or a copy that rounds as it is said here."""
        model = subject.model
        if self == AS_SERVED:
            return model
        model = moved(copy.deepcopy(model), model.device, self.compute or model.dtype)
        if self.is_cache_int8:
            _register()
            model.set_attn_implementation(ROUNDED_ATTENTION)
        return model

    def __str__(self) -> str:
        """Empty: as the model."""
        compute = str(self.compute).removeprefix("torch.") if self.compute else ""
        return ", ".join(filter(None, (compute, "int8 keys and values" if self.is_cache_int8 else "")))


AS_SERVED = Precision()


def resolve_precision(compute: str | None, kv_cache: str) -> Precision:
    """From `--compute-dtype` and `--kv-cache-dtype`. Raises `UsageError`."""
    one_of("--kv-cache-dtype", kv_cache, KV_CACHES)
    dtype = None if compute is None else resolve_dtype(compute, "--compute-dtype")
    return Precision(dtype, kv_cache == "int8")


def _register() -> None:
    AttentionInterface.register(ROUNDED_ATTENTION, _attend)
    AttentionMaskInterface.register(ROUNDED_ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def _attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any
) -> Any:
    """SDPA over keys and values as a cache in 8 bits gives them back: rounding once is as good as at
    each step, for what is rounded is always the same."""
    return ALL_ATTENTION_FUNCTIONS["sdpa"](
        module, query, in_8_bits(key), in_8_bits(value), mask, **more
    )


def in_8_bits(states: Tensor) -> Tensor:
    """Rounded to the nearest of 256 values between the least and the greatest of each token and head:
    asymmetric 8-bit quantization. `states`: `(..., head_dim)`."""
    low, high = states.amin(-1, keepdim=True), states.amax(-1, keepdim=True)
    unit = ((high - low) / NUM_LEVELS).clamp_min(torch.finfo(states.dtype).tiny)
    return ((states - low) / unit).round() * unit + low
