"""Kernels for a CPU, compiled where they run: `native_kernels.cpp`.

The compiler knows the vector units of the machine that it runs on, and needs a second, once
(`native_build.py`). Without one there are no kernels, and torch's own are used.

A row's result does not depend on the other rows of a step, to the bit.
"""

import ctypes
from ctypes import POINTER, Structure, byref, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from torch.jit._trace import is_tracing

from batchproof.errors import UnsupportedModelError
from batchproof_paged.attention import AttentionForm
from batchproof_paged.native_build import NotBuiltError, built

SOURCE = Path(__file__).with_name("native_kernels.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC")
PANEL = 16  # as in the source


def works() -> bool:
    return why_not() is None


@cache
def why_not() -> str | None:
    """Returns why the kernels cannot be used on this machine, or None."""
    try:
        _kernels()
    except NotBuiltError as error:
        return str(error)
    return None


def pack(weight: Tensor) -> Tensor:
    """Returns a copy of `weight` (out, in), float32 of any strides, in the layout of `multiply`:
    (panels, in, PANEL)."""
    num_outputs, num_inputs = weight.shape
    packed = weight.new_empty(-(-num_outputs // PANEL), num_inputs, PANEL)
    _kernels().pack_weights(
        *(num_outputs, num_inputs, weight.data_ptr(), *weight.stride(), packed.data_ptr())
    )
    return packed


def multiply(rows: Tensor, packed: Tensor, bias: Tensor | None, num_outputs: int) -> Tensor:
    """Returns `rows` (..., in) times the weight of which `packed` is a copy, plus `bias` (out,):
    (..., out)."""
    _require_float(rows)
    num_inputs = packed.shape[1]
    rows = rows.contiguous()
    bias = None if bias is None else bias.contiguous()
    out = rows.new_empty(*rows.shape[:-1], num_outputs)
    _kernels().multiply_packed(
        rows.numel() // num_inputs,
        num_outputs,
        num_inputs,
        rows.data_ptr(),
        packed.data_ptr(),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def _multiply(rows: Tensor, packed: Tensor, bias: Tensor | None, num_outputs: int) -> Tensor:
    if is_tracing():  # which looks at operators, not at values, and reads no shape
        return rows.new_zeros(*rows.shape[:-1], num_outputs)
    return multiply(rows, packed, bias, num_outputs)


# A torch operator, so that TorchScript can call it.
_LIBRARY = torch.library.Library("batchproof", "FRAGMENT")
_LIBRARY.define("multiply_packed(Tensor rows, Tensor packed, Tensor? bias, int num_outputs) -> Tensor")
_LIBRARY.impl("multiply_packed", _multiply, "CPU")


class Layer(Structure):
    """What the kernel of attention knows of a layer; see `Layer` in the source."""

    kept: tuple[object, ...]  # whose memory it points to
    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("capacity", c_int64),
        ("key_size", c_int64),
        ("value_size", c_int64),
        ("window", c_int64),
        ("scaling", c_float),
        ("softcap", c_float),
        ("sinks", c_void_p),
        ("threads", c_int32),
    )

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, num_heads: int, form: AttentionForm) -> Self:
        """Describes `keys` (lanes, num_kv_heads, capacity, size) and `values`, contiguous."""
        sinks = None if form.sinks is None else form.sinks.detach().float().contiguous()
        layer = cls(
            keys.data_ptr(),
            values.data_ptr(),
            num_heads,
            *keys.shape[1:],
            values.shape[3],
            form.window or 0,
            form.scaling,
            form.softcap or 0.0,
            None if sinks is None else sinks.data_ptr(),
            torch.get_num_threads(),
        )
        layer.kept = keys, values, sinks
        return layer


def store(
    keys: Tensor, values: Tensor, lanes: Tensor, offsets: Tensor, key: Tensor, value: Tensor
) -> None:
    """Stores `key` and `value` (T, num_kv_heads, size) in the cells of `keys` and `values` (lanes,
    num_kv_heads, capacity, size), contiguous, at `lanes` and `offsets` (T,), int64."""
    for cells, each in ((keys, key), (values, value)):
        rows = _with_dense_heads(each)
        _kernels().store(
            *(cells.data_ptr(), *cells.shape[1:]),
            *(len(lanes), lanes.data_ptr(), offsets.data_ptr()),
            *(rows.data_ptr(), *rows.stride()[:2]),
        )


def attend(
    layer: Layer, tokens: Tensor, lanes: Tensor, seq_lens: Tensor, query: Tensor, out: Tensor
) -> None:
    """Lets the queries of R rows, `tokens` (R,) of `query` (T, num_heads, size), see the first
    `seq_lens` (R,) keys of their `lanes` (R,), or the window's; all int64. Writes the same rows of
    `out` (T, num_heads, value_size), which is contiguous."""
    query = _with_dense_heads(query)
    _kernels().attend_rows(
        byref(layer),
        *(len(tokens), tokens.data_ptr(), lanes.data_ptr(), seq_lens.data_ptr()),
        *(query.data_ptr(), *query.stride()[:2], out.data_ptr()),
    )


def attend_span(layer: Layer, lane: int, context_len: int, query: Tensor, out: Tensor) -> None:
    """Lets the queries (T, num_heads, size) of T tokens behind `context_len` others of the lane see the
    keys up to their own, or the window's. Writes `out` (T, num_heads, value_size), contiguous."""
    query = _with_dense_heads(query)
    _kernels().attend_span(
        byref(layer),
        *(lane, context_len, len(query)),
        *(query.data_ptr(), *query.stride()[:2], out.data_ptr()),
    )


def _with_dense_heads(rows: Tensor) -> Tensor:
    _require_float(rows)
    return rows if rows.stride(2) == 1 else rows.contiguous()


def _require_float(rows: Tensor) -> None:
    """Raises `UnsupportedModelError` for what the kernels would misread."""
    if rows.dtype is not torch.float32:
        raise UnsupportedModelError(f"the native kernels compute in float32, not in {rows.dtype}")


@cache
def _kernels() -> ctypes.CDLL:
    """Returns the compiled kernels. Raises `NotBuiltError`."""
    made = built(SOURCE, FLAGS, wanted=["-fopenmp"])  # without OpenMP its loops run in one thread
    size, place = c_int64, c_void_p
    signatures = {
        "pack_weights": [size, size, place, size, size, place],
        "multiply_packed": [size, size, size, *[place] * 4, c_int32],
        "store": [place, *[size] * 4, *[place] * 3, size, size],
        "attend_rows": [POINTER(Layer), size, *[place] * 4, size, size, place],
        "attend_span": [POINTER(Layer), *[size] * 3, place, size, size, place],
    }
    try:
        library = ctypes.CDLL(str(made))
        for name, arguments in signatures.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
    except (OSError, AttributeError) as error:
        raise NotBuiltError(f"what the compiler made cannot be loaded: {error}") from error
    return library
