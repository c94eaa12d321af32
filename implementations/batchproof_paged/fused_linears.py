"""Linear layers that read the same rows, as one product.

A product of few rows takes the time of reading its weights and a latency besides, which is paid once
where queries, keys and values come from one weight, and so do a gated MLP's two halves. For each layer
stands its part of the common product, and `compiled` computes equal products but once. That layers are
called with the same rows is guessed by their names; where they are not, nothing is wrong, but slow.

The common weights are copies and take the memory of theirs again; the model is left alone. A step looks
at the version and the place of each weight, which every change in place moves that torch knows of.
Where a run begins, all are copied again, which takes a GPU less time than a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from batchproof_paged.attention import StandIns
from batchproof_paged.packing import mark

SIBLINGS = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
SHARE_OF_FREE_MEMORY = 0.25


class Part(nn.Module):
    """A layer's part of a common product."""

    weight: Tensor  # (outputs of all, inputs), the same object in all parts
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, start: int, stop: int) -> None:
        super().__init__()
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("bias", bias, persistent=False)
        self._start, self._stop = start, stop

    def forward(self, rows: Tensor) -> Tensor:
        return linear(rows, self.weight, self.bias)[..., self._start : self._stop]


class _Family:
    """Sibling layers and the copy of their weights."""

    def __init__(self, parent: nn.Module, names: Sequence[str]) -> None:
        self._layers: list[nn.Linear] = [getattr(parent, name) for name in names]
        weights = torch.cat([each.weight for each in self._layers])
        bias = None
        if self._layers[0].bias is not None:
            bias = torch.cat([each.bias for each in self._layers])
        self._parts: list[Part] = []
        self._copies: list[Tensor] = []  # views, in the order of the sources
        start = 0
        for layer in self._layers:
            own = slice(start, start := start + layer.out_features)
            self._parts.append(Part(weights, bias, own.start, own.stop))
            self._copies += [each[own] for each in (weights, bias) if each is not None]
        self._marks: list[tuple[int, int]] = []

    def follow(self, is_thorough: bool) -> None:
        """Copies weights that have changed, or all, to where captured steps read them."""
        # A step asks, and `parameters()` would take it nearly three times as long.
        kept = (layer._parameters.values() for layer in self._layers)
        sources = [each for values in kept for each in values if each is not None]
        marks = [mark(each) for each in sources]
        if is_thorough or marks != self._marks:
            for copy, source in zip(self._copies, sources, strict=True):
                copy.copy_(source)
            self._marks = marks

    @property
    def fits(self) -> bool:
        """Returns whether the layers are plain still, and of the copies' dtype and device."""
        kinds = {(each.weight.dtype, each.weight.device) for each in (*self._layers, self._parts[0])}
        return len(kinds) == 1 and all(map(_is_plain, self._layers))

    def stand_ins(self) -> Iterator[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
        """Yields each layer with its part's forward pass."""
        yield from zip(self._layers, (each.forward for each in self._parts), strict=True)


# Engines are built often.
_FAMILIES: WeakKeyDictionary[PreTrainedModel, list[_Family]] = WeakKeyDictionary()


class FusedLinears(AbstractContextManager[None]):
    """A context in which sibling layers of a model are parts of common products."""

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, free_bytes: int) -> None:
        """Fuses nothing if that took more than a share of `free_bytes`."""
        if not all(each.fits for each in _FAMILIES.get(model, ())):
            del _FAMILIES[model]
        if model not in _FAMILIES:
            found = [*_siblings(model)]
            children = [parent.get_submodule(name) for parent, names in found for name in names]
            num_bytes = sum(each.nbytes for child in children for each in child.parameters())
            is_small = num_bytes <= SHARE_OF_FREE_MEMORY * free_bytes
            _FAMILIES[model] = [_Family(*each) for each in found] if is_small else []
        self._families = _FAMILIES[model]

    def __enter__(self) -> None:
        fitting = (each for each in self._families if each.fits)
        self._parts = StandIns(pair for each in fitting for pair in each.stand_ins())
        self._parts.__enter__()

    def __exit__(self, *_: object) -> None:
        self._parts.__exit__()

    def follow(self, is_thorough: bool) -> None:
        """Has the copies follow weights that were changed, even through `.data` if all are copied
        again."""
        with torch.inference_mode():
            for each in self._families:
                each.follow(is_thorough)


def _siblings(model: PreTrainedModel) -> Iterator[tuple[nn.Module, Sequence[str]]]:
    """Yields parents, and the names of children whose products can be one."""
    for parent in model.modules():
        for names in SIBLINGS:
            children = [parent._modules.get(name) for name in names]
            if all(map(_is_plain, children)) and len({*map(_kind, children)}) == 1:
                yield parent, names


def _is_plain(module: nn.Module | None) -> bool:
    """Returns whether the module's forward pass is a product with a weight, and nothing else."""
    return type(module) is nn.Linear and "forward" not in module.__dict__


def _kind(module: nn.Module | None) -> tuple[object, ...]:
    assert isinstance(module, nn.Linear)
    weight = module.weight
    return module.in_features, module.bias is None, weight.dtype, weight.device
