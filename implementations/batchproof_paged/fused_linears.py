"""Linear layers that read the same rows, as one product.

A product of few rows takes the time of reading its weights and a latency besides, which is paid once
where queries, keys and values come from one weight, and so do the two halves of a gated MLP. Each layer
becomes a part of the common product, and `compiled` computes equal products only once. Names suggest
which layers read the same rows; where they do not, the results are right all the same, but slow.

The common weights are copies and take the memory of theirs again; the model is left alone. A step looks
at the version and the place of each weight, which every in-place change of torch moves. Where a run
begins, all are copied again, which takes a GPU less time than a prompt.
"""

from collections.abc import Callable, Iterator, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from batchproof_paged.attention import StandIns, runs_its_class
from batchproof_paged.packing import mark

SIBLINGS = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
SHARE_OF_FREE_MEMORY = 0.25


class Part(nn.Module):
    """A layer's part of a common product."""

    weight: Tensor  # (outputs of all, inputs), the same object in all parts
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, own: slice) -> None:
        super().__init__()
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("bias", bias, persistent=False)
        self._start, self._stop = own.start, own.stop

    def forward(self, rows: Tensor) -> Tensor:
        return linear(rows, self.weight, self.bias)[..., self._start : self._stop]


class _Family:
    """Sibling layers and the copy of their weights."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._layers = layers
        weight = torch.cat([each.weight for each in layers])
        bias = None if layers[0].bias is None else torch.cat([each.bias for each in layers])
        self.pairs: list[tuple[nn.Linear, Callable[[Tensor], Tensor]]] = []  # for `StandIns`
        self._copies: list[Tensor] = []  # views, in the order of the sources
        stop = 0
        for layer in layers:
            own = slice(stop, stop := stop + layer.out_features)
            self.pairs.append((layer, Part(weight, bias, own).forward))
            self._copies += [each[own] for each in (weight, bias) if each is not None]
        self._marks: list[tuple[int, int]] = []

    @property
    def fits(self) -> bool:
        """Whether the layers are plain still, and of the copies' dtype and device."""
        kinds = {(each.dtype, each.device) for each in (self._copies[0], *_weights(self._layers))}
        return len(kinds) == 1 and all(runs_its_class(each, nn.Linear) for each in self._layers)

    def follow(self, is_thorough: bool) -> None:
        """Copies weights that have changed, or all, to where captured steps read them."""
        sources = _weights(self._layers)
        marks = [mark(each) for each in sources]
        if (is_thorough or marks != self._marks) and self.fits:
            for copy, source in zip(self._copies, sources, strict=True):
                copy.copy_(source)
            self._marks = marks


def _weights(layers: Sequence[nn.Linear]) -> list[Tensor]:
    # Every step asks, and `parameters()` would take nearly three times as long.
    kept = (layer._parameters.values() for layer in layers)
    return [each for values in kept for each in values if each is not None]


# Engines are built often.
_FAMILIES: WeakKeyDictionary[PreTrainedModel, list[_Family]] = WeakKeyDictionary()


class FusedLinears:
    """The common products of a model."""

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, free_bytes: int) -> None:
        """Fuses nothing if that took more than a share of `free_bytes`."""
        if model not in _FAMILIES or not all(each.fits for each in _FAMILIES[model]):
            found = [*_siblings(model)]
            num_bytes = sum(each.nbytes for layers in found for each in _weights(layers))
            is_small = num_bytes <= SHARE_OF_FREE_MEMORY * free_bytes
            _FAMILIES[model] = [_Family(layers) for layers in found] if is_small else []
        self._families = _FAMILIES[model]

    def in_place(self) -> StandIns:
        """Returns a context in which sibling layers are parts of common products."""
        return StandIns(pair for each in self._families if each.fits for pair in each.pairs)

    def follow(self, is_thorough: bool) -> None:
        """Has the copies follow changed weights; a change through `.data` is seen if `is_thorough`."""
        with torch.inference_mode():
            for each in self._families:
                each.follow(is_thorough)


def _siblings(model: PreTrainedModel) -> Iterator[list[nn.Linear]]:
    """Yields layers of one parent whose products can be one."""
    for parent in model.modules():
        for names in SIBLINGS:
            layers = [
                each for name in names if isinstance(each := getattr(parent, name, None), nn.Linear)
            ]
            is_plain = all(runs_its_class(each, nn.Linear) for each in layers)
            if len(layers) == len(names) and is_plain and len({*map(_kind, layers)}) == 1:
                yield layers


def _kind(layer: nn.Linear) -> tuple[object, ...]:
    return layer.in_features, layer.bias is None, layer.weight.dtype, layer.weight.device
