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

import inspect
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning
from torch.nn.functional import gelu, rms_norm
from transformers import PreTrainedModel
from transformers.activations import NewGELUActivation

from batchproof_engines.model_support import state_of
from batchproof_paged.attention import NullBackend, StandIns, passing_to, runs_its_class
from batchproof_paged.packing import PackedLinear, PackedLinears

TOLERANCE = 1e-5  # of results around 1, in float32: what another order of summing changes


Fused = tuple[nn.Module, Callable[[Tensor], Tensor]]  # a module, and what computes the same


@torch.no_grad()
def fusible(model: PreTrainedModel) -> list[Fused]:
    """Returns the modules of a model in float32 that one operator of torch can stand for.

    The tanh form of GELU is eight operators over the widest rows of a model; at the shape of GPT-2 they
    take a fifth of a prompt's time, and torch's own a tenth of that. Names do not say which modules
    compute what an operator does, so it is tried.
    """
    if model.dtype is not torch.float32:  # rounding in between is part of the module
        return []
    parts = []
    for module in model.modules():
        with suppress(Exception):  # whatever a module of others asks for, it is no plain one
            part = _of(module)
            if part is not None and runs_its_class(module) and _is_same(part):
                parts.append(part)
    return parts


def _of(module: nn.Module) -> Fused | None:
    """Returns what probably computes the same as the module."""
    if type(module) is NewGELUActivation:
        return module, partial(gelu, approximate="tanh")
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
        return module, partial(_normalised, module, epsilon)
    return None


def _normalised(module: nn.Module, epsilon: float, rows: Tensor) -> Tensor:
    weight = module.weight
    assert isinstance(weight, nn.Parameter)
    return rms_norm(rows, tuple(weight.shape), weight, epsilon)


def _is_same(part: Fused) -> bool:
    """Tries rows of several magnitudes."""
    module, fused = part
    weight = getattr(module, "weight", torch.ones(64))
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(6, len(weight), generator=generator) * torch.logspace(-4, 1, 6)[:, None]
    rows = rows.to(weight.device)
    ours, theirs = fused(rows), module(rows)
    return isinstance(theirs, Tensor) and torch.allclose(ours, theirs, TOLERANCE, TOLERANCE)


# Token ids (1, T), position ids (1, T), indices of the sampled tokens (S,) -> logits (S, vocab).
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]
# The same with the copies of packed layers and the tensors of the model behind them.
Trace = Callable[..., Tensor]

# Engines are built often: traces serve as long as the model lives and keeps its tensors.
_TRACES: WeakKeyDictionary[PreTrainedModel, "Traces"] = WeakKeyDictionary()


class Traces(dict[object, "Trace | None"]):
    """The traces of a model, by how it multiplies: row by row or not, and with which copies."""

    fusible: Sequence[Fused] = ()

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.tensors = [*model.parameters(), *model.buffers()]
        tensors = [(id(each), each.data_ptr(), each.dtype) for each in self.tensors]
        self.facts = tensors, state_of(model)


class TracedForward:
    """`forward` of a model as TorchScript, or as it is if it cannot be traced soundly."""

    def __init__(
        self,
        model: PreTrainedModel,
        forward: Forward,
        pack: bool | None,  # see `PackedLinears`
        is_invariant: bool = False,  # `forward` multiplies row by row, and has traces of its own
    ) -> None:
        self._forward = forward
        self._device = model.device
        self._is_invariant = is_invariant
        current = Traces(model)
        if model not in _TRACES or _TRACES[model].facts != current.facts:
            _TRACES[model] = current
            current.fusible = fusible(model)
        self._traces = _TRACES[model]
        self.is_traced = self._trace(()) is not None
        self._linears = PackedLinears(model, pack if self.is_traced else False, is_invariant)

    def begin_run(self) -> None:
        """Looks thoroughly whether weights that have packed copies have changed."""
        self._linears.follow(is_thorough=True)

    def __call__(self, tokens: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        """Returns logits (S, vocab) as `forward` does."""
        self._linears.follow(is_thorough=False)
        packed = self._linears.selected(tokens.shape[1])
        trace = self._trace(packed)
        if trace is None:
            return self._forward(tokens, positions, last)
        return trace(tokens, positions, last, *[each.weight for each in packed], *self._traces.tensors)

    def _trace(self, packed: Sequence[PackedLinear]) -> Trace | None:
        key = self._is_invariant, *((each.layer, each.kernel) for each in packed)
        if key not in self._traces:
            fused = [] if self._is_invariant else self._traces.fusible
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
    with warnings.catch_warnings(record=True) as caught, passing_to(NullBackend()), torch.no_grad():
        warnings.simplefilter("always")
        try:
            trace: Trace = torch.jit.trace(forward_packed, examples, check_trace=False)
        except Exception:  # TorchScript does not support something: the model is run as it is
            return None
    if any(issubclass(each.category, TracerWarning) for each in caught):
        return None
    return trace
