"""A model's forward pass as TorchScript, on a CPU: the same operators without Python between them.

A step of a dozen rows spends a third to two thirds of its time in the Python of transformers' modules.
A trace takes 0.02 to 0.2 s to make and serves batches of every size, with one trace for each set of
packed layers (`packing.py`). (`torch.compile` takes 12 to 24 s on a CPU.)

The model's tensors are arguments of a trace. Kept in it as constants, those of equal content would
become one, and a change of either in place would be missed or shared.

A trace does not see Python that inspects a tensor, as a mixture of experts does to select its experts.
torch warns of every such place; after a single warning there is no trace, and the model is run as it
is. The trial batch at construction compares the traced model with the model itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.jit._trace import TracerWarning
from transformers import PreTrainedModel

from batchproof_paged.attention import AttentionForm, passing_to
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.fusing import Fused, fusible
from batchproof_paged.packing import PackedLinear, PackedLinears
from batchproof_paged.packing_choice import PLAIN
from batchproof_paged.stand_ins import StandIns

# Token ids (1, T), position ids (1, T), indices of the sampled tokens (S,) -> logits (S, vocab).
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]
# The same with the copies of packed layers and the tensors of the model behind them.
Trace = Callable[..., Tensor]

# Engines are built often: traces serve as long as the model lives and keeps its tensors.
_TRACES: WeakKeyDictionary[PreTrainedModel, Traces] = WeakKeyDictionary()


class Traces(dict[object, "Trace | None"]):
    """The traces of a model, by how they multiply: tiles or not, and the layers that are packed."""

    fusible: Sequence[Fused] = ()

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.tensors = [*model.parameters(), *model.buffers()]
        self.facts = [(id(each), each.data_ptr(), each.dtype) for each in self.tensors]


class _NullBackend:
    """A backend that stores nothing: tracing looks at operators, not at values."""

    num_bytes = 0

    def begin(self, batch: RaggedBatch) -> None: ...

    def poison(self, block_ids: Sequence[int], value: float) -> None: ...

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        del layer, key, form
        return query.new_zeros(*query.shape[:2], value.shape[2])


class TracedForward:
    """`forward` of a model as TorchScript, or as it is if it cannot be traced soundly."""

    def __init__(
        self,
        model: PreTrainedModel,
        forward: Forward,
        linears: str,
        by_tiles: bool = False,  # as `forward` multiplies; it has traces of its own
    ) -> None:
        self._forward = forward
        self._device = model.device
        self._by_tiles = by_tiles
        current = Traces(model)
        if model not in _TRACES or _TRACES[model].facts != current.facts:
            _TRACES[model] = current
            current.fusible = fusible(model)
        self._traces = _TRACES[model]
        self.is_traced = self._trace(()) is not None
        self._linears = PackedLinears(model, linears if self.is_traced else PLAIN)

    def begin_run(self) -> None:
        """Looks thoroughly whether weights that have packed copies have changed."""
        self._linears.follow(is_thorough=True)

    def __call__(self, tokens: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        """Returns logits (S, vocab) as `forward` does."""
        self._linears.follow(is_thorough=False)
        packed = self._linears.selected(tokens.shape[1], len(last))
        trace = self._trace(packed)
        if trace is None:
            return self._forward(tokens, positions, last)
        return trace(tokens, positions, last, *[each.weight for each in packed], *self._traces.tensors)

    def _trace(self, packed: Sequence[PackedLinear]) -> Trace | None:
        key = self._by_tiles, *((each.layer, each.kernel) for each in packed)
        if key not in self._traces:
            fused = [] if self._by_tiles else self._traces.fusible
            tensors = self._traces.tensors
            make = partial(_traced, self._forward, self._device, packed, tensors=tensors)
            self._traces[key] = make(fused=fused) or (make(fused=[]) if fused else None)
        return self._traces[key]


def _traced(
    forward: Forward,
    device: torch.device,
    packed: Sequence[PackedLinear],
    fused: Sequence[Fused],
    tensors: Sequence[Tensor],
) -> Trace | None:
    def forward_packed(tokens: Tensor, positions: Tensor, last: Tensor, *others: Tensor) -> Tensor:
        copies = zip(packed, others, strict=False)  # behind the copies are the model's own tensors
        products = ((each.layer, partial(each.multiply, copy)) for each, copy in copies)
        with StandIns([*fused, *products]):
            return forward(tokens, positions, last)

    tokens = torch.arange(7, device=device)
    weights = [each.weight for each in packed]
    examples = (tokens[None], tokens[None] + 3, tokens[2:5], *weights, *tensors)
    with warnings.catch_warnings(record=True) as caught, passing_to(_NullBackend()), torch.no_grad():
        warnings.simplefilter("always")
        try:
            trace: Trace = torch.jit.trace(forward_packed, examples, check_trace=False)
        except Exception:  # TorchScript does not support something: the model is run as it is
            return None
    if any(issubclass(each.category, TracerWarning) for each in caught):
        return None
    return trace
