"""A model's forward pass as TorchScript, on a CPU: the same operators without Python between them.

A step of a dozen rows spends a third to two thirds of its time in the Python of transformers' modules.
A trace takes 0.02 to 0.2 s to make and serves batches of every size. (`torch.compile` takes 12 to 24 s
on a CPU.)

A trace does not see Python that inspects a tensor, as a mixture of experts does to select its experts.
torch warns of every such place; after a single warning there is no trace, and the model is run as it
is. The trial batch at construction compares the traced model with the model itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.jit._trace import TracerWarning
from transformers import PreTrainedModel

from batchproof_engines.paged.attention import AttentionForm, passing_to
from batchproof_engines.paged.batch import RaggedBatch
from batchproof_engines.paged.prepack import packed_linears

# Token ids (1, T), position ids (1, T), indices of the sampled tokens (S,) -> logits (S, vocab).
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]

# Engines are built often: a trace serves as long as the model lives and keeps its tensors.
_TRACES: WeakKeyDictionary[PreTrainedModel, tuple[object, Forward | None]] = WeakKeyDictionary()


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


def traced(model: PreTrainedModel, forward: Forward, is_packed: bool = False) -> Forward | None:
    """Returns `forward` of the model as TorchScript, or None if it cannot be traced soundly.

    `is_packed` multiplies with transposed copies of the weights (`prepack.py`).
    """
    if is_packed:  # never cached: it holds copies of weights that may have changed in place
        with packed_linears(model):
            return _trace(forward, model.device)
    tensors = [*model.parameters(), *model.buffers()]
    facts = [(each.data_ptr(), each.dtype) for each in tensors]
    if model not in _TRACES or _TRACES[model][0] != facts:
        _TRACES[model] = facts, _trace(forward, model.device)
    return _TRACES[model][1]


def _trace(forward: Forward, device: torch.device) -> Forward | None:
    tokens = torch.arange(7, device=device)
    examples = (tokens[None], tokens[None] + 3, tokens[2:5])
    with warnings.catch_warnings(record=True) as caught, passing_to(_NullBackend()), torch.no_grad():
        warnings.simplefilter("always")
        try:
            trace: Forward = torch.jit.trace(forward, examples, check_trace=False)
        except Exception:  # TorchScript does not support something: the model is run as it is
            return None
    if any(issubclass(each.category, TracerWarning) for each in caught):
        return None
    return trace
