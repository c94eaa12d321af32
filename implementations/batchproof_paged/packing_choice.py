"""Which kernel multiplies the rows of a step with a layer's weights: measured, by shape and row count.

The answer depends on the machine. A shape is measured once on it (`packing_memory.py`), with the
model's own layers of that shape in turn, so that their weights come from where they will come from in a
step.

kernel    its copy of the weights
plain     none: the layer's own forward pass
onednn    oneDNN's, which torch brings
native    ours, compiled on the machine: `native.py`
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cache
from math import inf

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from batchproof_paged import native
from batchproof_paged.packing_memory import Memory

Layer = nn.Linear  # or transformers' Conv1D, whose weight is (in, out)
Choice = dict[int, str]  # the kernel for each class of row counts

PLAIN = "plain"
ONEDNN = "onednn"
NATIVE = "native"
CLASSES = (1, 4, 16, 64)  # rows for which products are measured
BOUNDS = (2, 8, 32)  # the least rows of the second class, the third and the fourth
LEAST_GAIN = 1.1  # less would be lost in the noise of the measurement
MOST_MEASURED = 1 << 23  # elements in all that are measured for a shape
ROUNDS = 3

_MEMORY = Memory()

# TorchScript, because a trace can call it but cannot record the operator's own arguments.
_SCRIPT = """
def multiply(rows: Tensor, packed: Tensor, bias: Optional[Tensor]):
    return torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
"""


@cache
def _onednn() -> Callable[..., Tensor]:
    """Compiles the call of an operator that not every build of torch has."""
    call: Callable[..., Tensor] = torch.jit.CompilationUnit(_SCRIPT).multiply
    return call


def multiply(
    kernel: str, rows: Tensor, packed: Tensor, bias: Tensor | None, num_outputs: int
) -> Tensor:
    """Returns `rows` (..., in) times a weight (out, in), of which `packed` is a copy, plus `bias`
    (out,): (..., out)."""
    if kernel == NATIVE:
        product: Tensor = torch.ops.batchproof.multiply_packed(rows, packed, bias, num_outputs)
        return product
    return _onednn()(rows, packed, bias)


def pack(kernel: str, weight: Tensor) -> Tensor:
    """Returns a copy of `weight` (out, in) in the kernel's layout, an opaque tensor."""
    if kernel == NATIVE:
        return native.pack(weight)
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, CLASSES[2])
    return packed


def as_linear(layer: Layer) -> Tensor:
    """Returns the layer's weight as (out, in)."""
    weight = layer.weight.detach()
    return weight.t() if isinstance(layer, Conv1D) else weight


def works(kernel: str, dtype: torch.dtype) -> bool:
    """Returns whether there is such a kernel here for weights of this dtype."""
    if kernel == NATIVE:
        return dtype is torch.float32 and native.works()
    return torch.backends.mkldnn.is_available() and dtype in (torch.float32, torch.bfloat16)


def row_class(num_rows: int) -> int:
    """Returns the class of that many rows."""
    return CLASSES[bisect_right(BOUNDS, num_rows)]


def chosen(layers: Iterable[Layer]) -> dict[Layer, Choice]:
    """Returns for each layer the kernels that gain at least `LEAST_GAIN` over the plain one.

    A layer gets copies for one kernel at most, the one that gains most.
    """
    groups: dict[str, list[Layer]] = {}
    for layer in layers:
        groups.setdefault(_shape(layer), []).append(layer)
    choices = {shape: _choice(shape, group) for shape, group in groups.items()}
    return {each: choices[shape] for shape, group in groups.items() for each in group}


def _shape(layer: Layer) -> str:
    """Returns what products of this layer have in common with those of others."""
    sizes = "x".join(map(str, layer.weight.shape))
    return f"{type(layer).__name__} {sizes} {layer.weight.dtype}, threads={torch.get_num_threads()}"


def _choice(shape: str, layers: list[Layer]) -> Choice:
    dtype = layers[0].weight.dtype
    gains = {
        kernel: [_gain(shape, layers, kernel, each) for each in CLASSES]
        for kernel in (ONEDNN, NATIVE)
        if works(kernel, dtype)
    }
    best = max(gains, key=lambda each: sum(gains[each]), default=PLAIN)
    pairs = zip(CLASSES, gains.get(best, ()), strict=False)
    return {each: best for each, gain in pairs if gain > LEAST_GAIN}


def _gain(shape: str, layers: list[Layer], kernel: str, num_rows: int) -> float:
    """Returns how many times as fast as the plain one a kernel multiplies so many rows; measured
    once."""
    name = native.identity() if kernel == NATIVE else kernel
    question = f"{shape}, {name}, {num_rows} rows"
    gain = _MEMORY.recall(question)
    if gain is None:
        gain = _measured(layers, kernel, num_rows)
        _MEMORY.keep(question, gain)
    return gain


def _measured(layers: list[Layer], kernel: str, num_rows: int) -> float:
    weights = [_sliced(each) for each in layers[: max(1, MOST_MEASURED // layers[0].weight.numel())]]
    copies = [pack(kernel, each) for each in weights]
    rows = weights[0].new_ones(num_rows, weights[0].shape[1])
    times = {PLAIN: inf, kernel: inf}
    for each in [*times] * ROUNDS:
        began = time.thread_time()  # what other processes take is not in it
        for weight, copy in zip(weights, copies, strict=True):
            if each == PLAIN:
                linear(rows, weight)
            else:
                multiply(kernel, rows, copy, None, len(weight))
        times[each] = min(times[each], time.thread_time() - began)
    return times[PLAIN] / times[kernel]


def _sliced(layer: Layer) -> Tensor:
    """Returns as many of the weight's outputs as are measured; a vocabulary can be very long."""
    weight = as_linear(layer)
    return weight[: MOST_MEASURED // weight.shape[1]]
