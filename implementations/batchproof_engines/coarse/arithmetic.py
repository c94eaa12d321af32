"""Coarse arithmetic: what released engines do for speed, on a copy of the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from batchproof.models.catalogue import moved
from batchproof_engines.coarse.variant import BASES, Variant, on_a_copy
from batchproof_engines.copies import Copies

KEYS_AND_VALUES = ("k_proj", "v_proj")
MANY_ROWS = 12  # tokens of a step from which another kernel is taken
SEED = 0


def _linears(model: PreTrainedModel) -> list[tuple[str, nn.Module]]:
    found = model.named_modules()
    return [(name, each) for name, each in found if isinstance(each, nn.Linear | Conv1D)]


def _rounding(
    model: PreTrainedModel, change: Callable[[Tensor], Tensor], *names: str
) -> PreTrainedModel:
    """Changes the output of every linear layer, or of those whose name ends so."""

    def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        return change(output)

    for name, module in _linears(model):
        if not names or name.rpartition(".")[-1] in names:
            module.register_forward_hook(hook)
    return model


def bfloat16(model: PreTrainedModel) -> PreTrainedModel:
    """All arithmetic is bfloat16."""
    return moved(model, model.device, torch.bfloat16)


def _through(dtype: torch.dtype, values: Tensor) -> Tensor:
    return values.to(dtype).to(values.dtype)


def weights_in_8_bits(model: PreTrainedModel) -> PreTrainedModel:
    """Weights are 8-bit integers with a scale for each row."""
    for _, module in _linears(model):
        weight: Any = module.weight
        weight.copy_(_in_8_bits(weight))
    return model


def _in_8_bits(values: Tensor) -> Tensor:
    scale = values.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    return (values / scale).round() * scale


def cache_in_8_bits(model: PreTrainedModel) -> PreTrainedModel:
    """Keys and values are 8-bit integers with a scale for each token."""
    return _rounding(model, _in_8_bits, *KEYS_AND_VALUES)


def larger_batches_in_bfloat16(model: PreTrainedModel) -> PreTrainedModel:
    """A step of many tokens takes a kernel whose results are bfloat16."""

    def change(output: Tensor) -> Tensor:
        is_large = output.numel() // output.shape[-1] >= MANY_ROWS
        return _through(torch.bfloat16, output) if is_large else output

    return _rounding(model, change)


def _noisy(generator: torch.Generator, size: float, output: Tensor) -> Tensor:
    noise = torch.randn(output.shape, generator=generator, dtype=output.dtype)
    return output * (1 + size * noise)


def noise_by_chance(model: PreTrainedModel) -> PreTrainedModel:
    """Every layer is off by about a thousandth, otherwise in each pass, as with atomic sums."""
    return _rounding(model, partial(_noisy, torch.Generator().manual_seed(SEED), 2.0**-11))


def activations_in_8_bits(model: PreTrainedModel) -> PreTrainedModel:
    """Inputs of layers are 8-bit integers with one scale for all tokens of a step."""

    def hook(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        scale = inputs[0].abs().max() / 127
        return ((inputs[0] / scale).round() * scale, *inputs[1:])

    for name, module in _linears(model):
        if name.rpartition(".")[-1] != "lm_head":
            module.register_forward_pre_hook(hook)
    return model


KINDS = (
    bfloat16,
    weights_in_8_bits,
    cache_in_8_bits,
    noise_by_chance,
    larger_batches_in_bfloat16,
    activations_in_8_bits,
)


def _variants() -> dict[str, Variant]:
    found = {}
    for kind in KINDS:
        copies = Copies(kind)
        for base, factory in BASES.items():
            name = f"{kind.__name__}-{base}"
            summary = " ".join(str(kind.__doc__).split())
            found[name] = Variant(name, summary, kind.__name__, on_a_copy(copies, factory))
    return found


COARSE: dict[str, Variant] = _variants()
