"""Copies of the weights of linear layers in layouts that a CPU multiplies faster.

Products of few rows, as in decode steps, are bound by reading the weights, and torch's own kernels on
a CPU take up to twice the time for it. Each copy takes the memory of its weights again; the model is
left alone. Copies follow the weights: a step looks at the version and the place of each, which every
in-place change of torch moves; and a step that begins a run compares sums of the bits, which a write
through `.data` moves as well.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from batchproof_paged.packing_choice import (
    CLASSES,
    PLAIN,
    Layer,
    as_linear,
    chosen,
    multiply,
    pack,
    row_class,
    works,
)

WORDS_PER_SUM = 64
LEAST_SIZE = 1 << 20  # elements in all: the weights of smaller models stay in the caches of a core


class PackedLinear:
    """A layer and a copy of its weights for a kernel."""

    def __init__(self, layer: Layer, kernel: str) -> None:
        self.layer, self.kernel = layer, kernel
        self._source = layer.weight
        self._num_outputs = len(as_linear(layer))
        self._repack()

    def follow(self, is_thorough: bool) -> None:
        """Repacks if the weights have changed; a change through `.data` is seen if `is_thorough`."""
        is_same = self._mark == mark(self._source)
        if not is_same or (is_thorough and not self._sums.equal(_sums_of_bits(self._source))):
            self._repack()

    def multiply(self, packed: Tensor, rows: Tensor) -> Tensor:
        """Is the layer's forward pass over `rows` (1, T, in), given the copy."""
        return multiply(self.kernel, rows, packed, self.layer.bias, self._num_outputs)

    def _repack(self) -> None:
        self._mark, self._sums = mark(self._source), _sums_of_bits(self._source)
        self.weight = pack(self.kernel, as_linear(self.layer))  # opaque


# The copies of the engine built last: engines are built often.
_LATEST: WeakKeyDictionary[PreTrainedModel, dict[tuple[object, ...], PackedLinear]] = (
    WeakKeyDictionary()
)


class PackedLinears:
    """The copies that an engine uses, by the number of rows."""

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, linears: str) -> None:
        """`linears`: "plain" makes no copies, "auto" those that gain clearly, by measurement, and the
        name of a kernel those of all layers for that kernel."""
        self._head = model.get_output_embeddings()
        layers = [] if linears == PLAIN else _packable(model)
        if linears == "auto":
            is_large = sum(each.weight.numel() for each in layers) >= LEAST_SIZE
            choices = chosen(layers) if is_large else {}
        else:
            forced = dict.fromkeys(CLASSES, linears)
            choices = {each: forced for each in layers if works(linears, each.weight.dtype)}
        kept, self._copies = _LATEST.get(model, {}), dict[tuple[object, ...], PackedLinear]()
        self._choices: dict[Layer, dict[int, PackedLinear]] = {}
        for layer, choice in choices.items():
            for rows, kernel in choice.items():
                key = layer, id(layer.weight), kernel
                if key not in self._copies:
                    self._copies[key] = kept.get(key) or PackedLinear(layer, kernel)
                self._choices.setdefault(layer, {})[rows] = self._copies[key]
        _LATEST[model] = self._copies
        self._selected: dict[tuple[int, int], tuple[PackedLinear, ...]] = {}

    def follow(self, is_thorough: bool) -> None:
        """Makes the copies of changed weights anew; see `PackedLinear.follow`."""
        with torch.no_grad():
            for each in self._copies.values():
                each.follow(is_thorough)

    def selected(self, num_tokens: int, num_sampled: int) -> tuple[PackedLinear, ...]:
        """Returns the copies that a pass uses over so many tokens that samples so many rows."""
        classes = row_class(num_tokens), row_class(num_sampled)
        if classes not in self._selected:
            found = (
                choice.get(classes[layer is self._head]) for layer, choice in self._choices.items()
            )
            self._selected[classes] = tuple(each for each in found if each is not None)
        return self._selected[classes]


def _packable(model: PreTrainedModel) -> list[Layer]:
    """Returns the layers whose forward pass is a product with a weight, and nothing else."""
    return [
        each
        for each in model.modules()
        if type(each) in (nn.Linear, Conv1D)
        and isinstance(each.weight, nn.Parameter)
        and each.weight.dtype in (torch.float32, torch.bfloat16)
        and each.weight.is_contiguous()
        and each.weight.numel() % (4 // each.weight.element_size() * WORDS_PER_SUM) == 0
        and "forward" not in each.__dict__
        and not each._forward_pre_hooks
    ]


def mark(weight: Tensor) -> tuple[int, int]:
    """Returns what changes with every change in place that torch knows of, and with the storage."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _sums_of_bits(weight: Tensor) -> Tensor:
    """Returns exact sums of the bits of every 64 words, which takes as long as to read them once."""
    words = weight.detach().flatten().view(torch.int32)
    return words.view(-1, WORDS_PER_SUM).sum(dim=1, dtype=torch.int32)
