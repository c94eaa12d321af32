"""Copies of the weights of linear layers in the layout that our kernels multiply (`native`).

Products of few rows, as in decode steps, are bound by reading the weights, and torch's own kernels on
a CPU take up to twice the time for it. Each copy takes the memory of its weights again; the model is
left alone. Copies follow the weights: a step looks at the version and the place of each, which every
in-place change of torch moves; and a step that begins a run compares sums of the bits, which a write
through `.data` moves as well.
"""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from batchproof_paged import native
from batchproof_paged.attention import StandIns, runs_its_class

Layer = nn.Linear  # or transformers' Conv1D, whose weight is (in, out)

WORDS_PER_SUM = 64


class PackedLinear:
    """A layer and a copy of its weights: of all its outputs, or of a part."""

    def __init__(self, layer: Layer, part: slice | None = None) -> None:
        self.layer, self._part = layer, part or slice(None)
        self._source = layer.weight
        self._repack()

    def follow(self, is_thorough: bool) -> None:
        """Repacks if the weights have changed; a change through `.data` is seen if `is_thorough`."""
        is_same = self._mark == mark(self._source)
        if not is_same or (is_thorough and not self._sums.equal(_sums_of_bits(self._source))):
            self._repack()

    def multiply(self, rows: Tensor) -> Tensor:
        """Is the layer's forward pass over `rows` (1, T, in)."""
        return native.multiply(rows, self.weight, self.layer.bias, self.num_outputs)

    def _repack(self) -> None:
        seen = mark(self._source), _sums_of_bits(self._source)
        weight = self._source.detach()
        weight = weight.t() if isinstance(self.layer, Conv1D) else weight
        weight = weight[self._part]
        self.num_outputs = len(weight)
        self.weight = native.pack(weight)
        self._mark, self._sums = seen  # last: an engine in another thread may ask meanwhile


# The copies of the engine built last: engines are built often.
_LATEST: WeakKeyDictionary[PreTrainedModel, dict[object, PackedLinear]] = WeakKeyDictionary()


class Copies:
    """The copies of a model's weights that an engine uses: those of the engine built last, as far as it
    has them."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._known = _LATEST.get(model, {})
        self.used = _LATEST[model] = dict[object, PackedLinear]()

    def of(self, layer: Layer, part: slice | None = None) -> PackedLinear:
        """Returns the copy of these outputs of the layer; None: of all."""
        key = layer, id(layer.weight), repr(part)
        known = self._known.get(key)
        if known is not None:
            known.follow(is_thorough=False)
        self.used[key] = known or PackedLinear(layer, part)
        return self.used[key]

    def follow(self, is_thorough: bool) -> None:
        """Copies changed weights again; see `PackedLinear.follow`."""
        for each in self.used.values():
            each.follow(is_thorough)


class PackedProducts(StandIns):
    """A context in which the linear layers of a model multiply by copies of their weights."""

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel) -> None:
        self._copies = Copies(model)
        layers = [self._copies.of(each) for each in model.modules() if _is_packable(each)]
        super().__init__((each.layer, each.multiply) for each in layers)

    @torch.no_grad()
    def follow(self, is_thorough: bool) -> None:
        """See `PackedLinear.follow`."""
        self._copies.follow(is_thorough)


def _is_packable(module: nn.Module) -> bool:
    """Returns whether the forward pass is a product with a weight, and nothing else."""
    return (
        runs_its_class(module, nn.Linear, Conv1D)
        and isinstance(module.weight, nn.Parameter)
        and module.weight.dtype is torch.float32
        and module.weight.is_contiguous()
    )


def mark(weight: Tensor) -> tuple[int, int]:
    """Returns what changes with every change in place that torch knows of, and with the storage."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _sums_of_bits(weight: Tensor) -> Tensor:
    """Returns sums of the bits of every 64 words, which takes as long as to read them once, and one of
    the words that are left."""
    return native.sums_of_words(weight.detach().flatten().view(torch.int32), WORDS_PER_SUM)
