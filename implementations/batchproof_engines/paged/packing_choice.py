"""Which kernel multiplies the rows of a step with a layer's weights: measured, by shape and row count.

The answer depends on the machine. A shape is measured once on it (`packing_memory.py`), with the
model's own layers of that shape in turn, so that their weights come from where they will come from in a
step.

kernel    its copy of the weights serves
plain     needs none: the layer's own forward pass
onednn    any number of rows
mkl       the number of rows that it was made for: that of the engine's slots
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

from batchproof_engines.paged.packing_memory import Memory

Layer = nn.Linear  # or transformers' Conv1D, whose weight is (in, out)
Choice = dict[int, str]  # the kernel for each class of row counts

PLAIN = "plain"
ONEDNN = "onednn"
MKL = "mkl"
FULL = 0  # the class of exactly as many rows as the engine has slots
CLASSES = (1, 4, 16, 64)  # rows for which products are measured besides
BOUNDS = (2, 8, 32)  # the least rows of the second class, the third and the fourth
SLOTS = range(8, 65)  # with fewer, or more, padding a step to all slots does not pay
LEAST_GAIN = 1.1  # less would be lost in the noise of the measurement
MOST_MEASURED = 1 << 23  # elements in all that are measured for a shape
ROUNDS = 3

_MEMORY = Memory()

# TorchScript, because a trace can call it but cannot record the operators' own arguments.
_SCRIPT = """
def multiply(rows: Tensor, packed: Tensor, weight: Tensor, bias: Optional[Tensor], slots: int):
    return torch.ops.{}
"""
_OPERATORS = {
    ONEDNN: 'mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")',
    MKL: "mkl._mkl_linear(rows, packed, weight, bias, slots)",
}


@cache
def _compiled(kernel: str) -> Callable[..., Tensor]:
    """Compiles the call of an operator, which not every build of torch has."""
    call: Callable[..., Tensor] = torch.jit.CompilationUnit(_SCRIPT.format(_OPERATORS[kernel])).multiply
    return call


def multiply(
    kernel: str, rows: Tensor, packed: Tensor, weight: Tensor, bias: Tensor | None, slots: int
) -> Tensor:
    """Returns `rows` (..., in) times `weight` (out, in), of which `packed` is a copy, plus `bias`
    (out,): (..., out)."""
    return _compiled(kernel)(rows, packed, weight, bias, slots)


def pack(kernel: str, weight: Tensor, slots: int) -> Tensor:
    """Returns a copy of `weight` (out, in) in the kernel's layout, an opaque tensor."""
    packed: Tensor
    if kernel == MKL:
        packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), slots)
    else:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, slots)
    return packed


def as_linear(layer: Layer) -> Tensor:
    """Returns the layer's weight as (out, in)."""
    weight = layer.weight.detach()
    return weight.t() if isinstance(layer, Conv1D) else weight


def works(kernel: str, dtype: torch.dtype) -> bool:
    """Returns whether this build of torch has the kernel for weights of this dtype."""
    if kernel == MKL:
        return torch.backends.mkl.is_available() and dtype is torch.float32
    return torch.backends.mkldnn.is_available() and dtype in (torch.float32, torch.bfloat16)


def row_class(num_rows: int, slots: int) -> int:
    """Returns the class of that many rows."""
    return FULL if num_rows == slots else _class(num_rows)


def _class(num_rows: int) -> int:
    return CLASSES[bisect_right(BOUNDS, num_rows)]


def chosen(layers: Iterable[Layer], slots: int) -> dict[Layer, Choice]:
    """Returns for each layer the kernels that gain at least `LEAST_GAIN` over the plain one.

    A layer gets copies for one kernel at most.
    """
    groups: dict[str, list[Layer]] = {}
    for layer in layers:
        groups.setdefault(_shape(layer), []).append(layer)
    choices = {shape: _choice(shape, group, slots) for shape, group in groups.items()}
    return {each: choices[shape] for shape, group in groups.items() for each in group}


def _shape(layer: Layer) -> str:
    """Returns what products of this layer have in common with those of others."""
    sizes = "x".join(map(str, layer.weight.shape))
    return f"{type(layer).__name__} {sizes} {layer.weight.dtype}, threads={torch.get_num_threads()}"


def _choice(shape: str, layers: list[Layer], slots: int) -> Choice:
    choice = {each: _faster(shape, layers, ONEDNN, each) for each in CLASSES}
    choice[FULL] = choice[_class(slots)]
    if slots in SLOTS and ONEDNN not in choice.values():
        choice[FULL] = _faster(shape, layers, MKL, slots)
    return choice


def _faster(shape: str, layers: list[Layer], kernel: str, num_rows: int) -> str:
    """Returns the kernel if it gains clearly over the plain one, else that; measured once."""
    question = f"{shape}, {kernel}, {num_rows} rows"
    gains = _MEMORY.recall(question)
    if gains is None:
        gains = works(kernel, layers[0].weight.dtype) and _gain(layers, kernel, num_rows) > LEAST_GAIN
        _MEMORY.keep(question, gains)
    return kernel if gains else PLAIN


def _gain(layers: list[Layer], kernel: str, num_rows: int) -> float:
    """Returns how many times as fast as the plain one a kernel multiplies so many rows."""
    weights = [_sliced(each) for each in layers[: max(1, MOST_MEASURED // layers[0].weight.numel())]]
    copies = [pack(kernel, each, num_rows) for each in weights]
    rows = weights[0].new_ones(num_rows, weights[0].shape[1])
    times = {PLAIN: inf, kernel: inf}
    for each in [*times] * ROUNDS:
        began = time.thread_time()  # what other processes take is not in it
        for weight, copy in zip(weights, copies, strict=True):
            _product(each, rows, copy, weight, num_rows)
        times[each] = min(times[each], time.thread_time() - began)
    return times[PLAIN] / times[kernel]


def _product(kernel: str, rows: Tensor, copy: Tensor, weight: Tensor, slots: int) -> Tensor:
    if kernel == PLAIN:
        return linear(rows, weight)
    return multiply(kernel, rows, copy, weight, None, slots)


def _sliced(layer: Layer) -> Tensor:
    """Returns as many of the weight's outputs as are measured; a vocabulary can be very long."""
    weight = as_linear(layer)
    return weight[: MOST_MEASURED // weight.shape[1]]
