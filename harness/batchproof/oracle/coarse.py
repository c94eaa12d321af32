"""The model as an engine of a coarser precision computes it (`batchproof.oracle.precision`)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from batchproof.models.catalogue import moved, resolve_dtype
from batchproof.oracle.precision import AS_SERVED, Precision

ROUNDED_ATTENTION = "batchproof_int8_cache"
NUM_LEVELS = 255  # steps between the ends of what 8 bits hold


def coarse(model: PreTrainedModel, precision: Precision) -> PreTrainedModel:
    """Returns the model under test, or a copy that rounds at this precision."""
    if precision == AS_SERVED:
        return model
    dtype = resolve_dtype(precision.compute) if precision.compute else model.dtype
    model = moved(copy.deepcopy(model), model.device, dtype)
    if precision.is_cache_int8:
        _register()
        model.set_attn_implementation(ROUNDED_ATTENTION)
    return model


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
