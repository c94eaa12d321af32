"""Parts of a model that torch computes by one operator where transformers calls several.

The tanh form of GELU is eight operators over the widest rows of a model; at the shape of GPT-2 they
take a fifth of a prompt's time, and torch's own a tenth of that. Which modules compute what an operator
does is not told by their names, so it is tried.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, rms_norm
from transformers import PreTrainedModel
from transformers.activations import NewGELUActivation

TOLERANCE = 1e-5  # of results around 1, in float32: what another order of summing changes


class Fused(NamedTuple):
    """A module, and what computes the same."""

    module: nn.Module
    forward: Callable[[Tensor], Tensor]


@torch.no_grad()
def fusible(model: PreTrainedModel) -> list[Fused]:
    """Returns the modules of a model in float32 that one operator can stand for."""
    if model.dtype is not torch.float32:  # rounding in between is part of the module
        return []
    parts = []
    for module in model.modules():
        with suppress(Exception):  # whatever a module of others asks for, it is no plain one
            part = _of(module)
            if part is not None and "forward" not in module.__dict__ and _is_same(part):
                parts.append(part)
    return parts


def _of(module: nn.Module) -> Fused | None:
    """Returns what probably computes the same as the module."""
    if type(module) is NewGELUActivation:
        return Fused(module, partial(gelu, approximate="tanh"))
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    takes_rows_alone = len(inspect.signature(module.forward).parameters) == 1
    if not (type(module).__name__.endswith("RMSNorm") and takes_rows_alone):
        return None
    if (
        isinstance(epsilon, float)
        and isinstance(weight, nn.Parameter)
        and weight.dtype is torch.float32
    ):
        return Fused(module, partial(_normalised, module, epsilon))
    return None


def _normalised(module: nn.Module, epsilon: float, rows: Tensor) -> Tensor:
    weight = module.weight
    assert isinstance(weight, nn.Parameter)
    return rms_norm(rows, tuple(weight.shape), weight, epsilon)


def _is_same(part: Fused) -> bool:
    """Tries rows of several magnitudes."""
    weight = getattr(part.module, "weight", torch.ones(64))
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(6, len(weight), generator=generator) * torch.logspace(-4, 1, 6)[:, None]
    rows = rows.to(weight.device)
    ours, theirs = part.forward(rows), part.module(rows)
    return isinstance(theirs, Tensor) and torch.allclose(ours, theirs, TOLERANCE, TOLERANCE)
