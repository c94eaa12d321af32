"""Kernels for a CPU, compiled where they run: `native_kernels.cpp`.

The compiler knows the vector units of the machine that it runs on, and needs a few seconds, once
(`native_build.py`). Without one there are no kernels, and torch's own are used.

A row's result does not depend on the other rows of a step, nor on the number of threads, to the bit.
"""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_double, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from batchproof.errors import UnsupportedModelError
from batchproof_paged.attention import AttentionForm
from batchproof_paged.batch import Ints
from batchproof_paged.native_build import NotBuiltError, built

SOURCE = Path(__file__).with_name("native_kernels.cpp")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-std=c++17", "-shared", "-fPIC")
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
    _require_float(weight)
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
    rows = rows.contiguous()
    bias = None if bias is None else bias.contiguous()
    out = rows.new_empty(*rows.shape[:-1], num_outputs)
    product = Product.of(packed, bias, num_outputs)
    num_rows = rows.numel() // packed.shape[1]
    _kernels().multiply_packed(
        byref(product), num_rows, rows.data_ptr(), out.data_ptr(), torch.get_num_threads()
    )
    return out


def sums_of_words(words: Tensor, group: int) -> Tensor:
    """Returns a sum for each `group` of `words` (N,), of 32 bits, contiguous, and one of the rest."""
    sums = words.new_empty(len(words) // group + 1, dtype=torch.int64)
    given = len(words), group, words.data_ptr(), sums.data_ptr(), torch.get_num_threads()
    _kernels().sum_words(*given)
    return sums


class Product(Structure):
    """See `Product` in the source, as for all of these."""

    _fields_ = (
        ("num_outputs", c_int64),
        ("num_inputs", c_int64),
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("is_added", c_int64),
    )

    @classmethod
    def of(cls, packed: Tensor, bias: Tensor | None, num_outputs: int, is_added: bool = False) -> Self:
        place = None if bias is None else bias.data_ptr()
        return cls(num_outputs, packed.shape[1], packed.data_ptr(), place, is_added)


class Layer(Structure):
    """The cells of a layer, and how it attends."""

    kept: tuple[object, ...]  # whose memory it points to
    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("capacity", c_int64),
        ("key_size", c_int64),
        ("value_size", c_int64),
        ("value_stride", c_int64),
        ("window", c_int64),
        ("scaling", c_float),
        ("softcap", c_float),
        ("sinks", c_void_p),
    )

    @classmethod
    def of(
        cls, keys: Tensor, values: Tensor, value_size: int, num_heads: int, form: AttentionForm
    ) -> Self:
        """Describes `keys` (lanes, num_kv_heads, capacity / PANEL, size, PANEL) and `values` (lanes,
        num_kv_heads, capacity, a multiple of PANEL), contiguous."""
        sinks = None if form.sinks is None else form.sinks.detach().float().contiguous()
        layer = cls(
            *(keys.data_ptr(), values.data_ptr(), num_heads, *values.shape[1:3], keys.shape[3]),
            *(value_size, values.shape[3], form.window or 0, form.scaling, form.softcap or 0.0),
            None if sinks is None else sinks.data_ptr(),
        )
        layer.kept = keys, values, sinks
        return layer


class Tokens(Structure):
    """Where the tokens of a step are."""

    kept: tuple[object, ...]
    _fields_ = (
        ("num", c_int64),
        ("places", c_void_p),
        ("seq_lens", c_void_p),
        ("tables", c_void_p),
        ("scattered", c_void_p),
        ("table_size", c_int64),
    )

    @classmethod
    def of(cls, columns: Ints, scattered: Ints) -> Self:
        """`columns` are places, lengths and tables (3, T), `scattered` is (rows, size); contiguous."""
        start, stride = columns.ctypes.data, columns.strides[0]
        starts = (start + row * stride for row in range(3))
        tokens = cls(columns.shape[1], *starts, scattered.ctypes.data, scattered.shape[1])
        tokens.kept = columns, scattered
        return tokens


def attend(
    layer: Layer, tokens: Tokens, query: Tensor, key: Tensor, value: Tensor, out: Tensor
) -> None:
    """Stores `key` and `value` (T, num_kv_heads, size) in the cells of the layer, and lets `query` (T,
    num_heads, size) see the keys of its sequence up to its own, or the window's. Writes `out` (T,
    num_heads, value_size), which is contiguous."""
    dense = [_with_dense_heads(each) for each in (query, key, value)]
    strided = (part for each in dense for part in (each.data_ptr(), *each.stride()[:2]))
    _kernels().attend(byref(layer), byref(tokens), *strided, out.data_ptr(), torch.get_num_threads())


# Of an `Op`.
EMBED, NORM, MULTIPLY, ROTATE, STORE, ATTEND, ACTIVATE, PICK = range(8)
SILU, GELU_TANH, RELU = range(3)


class Op(Structure):
    """One operation of a decoder."""

    _fields_ = (
        ("kind", c_int64),
        ("input", c_int64),
        ("output", c_int64),
        ("other", c_int64),
        ("size", c_int64),
        ("layer", c_int64),
        ("function", c_int64),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("epsilon", c_double),
        ("product", Product),
    )


class Buffer(Structure):
    """Intermediate results."""

    _fields_ = (("width", c_int64), ("is_local", c_int64))


class Program(Structure):
    """The operations of a decoder, in order."""

    kept: tuple[object, ...]
    _fields_ = (
        ("ops", POINTER(Op)),
        ("num_ops", c_int64),
        ("buffers", POINTER(Buffer)),
        ("num_buffers", c_int64),
    )

    @classmethod
    def of(cls, ops: Sequence[Op], buffers: Sequence[Buffer]) -> Self:
        arrays = (Op * len(ops))(*ops), (Buffer * len(buffers))(*buffers)
        program = cls(arrays[0], len(ops), arrays[1], len(buffers))
        program.kept = arrays
        return program


class Step(Structure):
    """What a program runs over."""

    _fields_ = (
        ("tokens", Tokens),
        ("token_ids", c_void_p),
        ("layers", POINTER(Layer)),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("rotary", c_int64),
        ("num_picked", c_int64),
        ("picked", c_void_p),
        ("logits", c_void_p),
        ("chosen", c_void_p),
        ("threads", c_int32),
    )


def decode(program: Program, step: Step) -> None:
    """Writes logits and chosen tokens of the step, and the keys and values of its tokens.

    Raises `IndexError` for a token or a position that has no row in its table.
    """
    if _kernels().decode(byref(program), byref(step)):
        raise IndexError("a token id or a position of the step is beyond the model's embedding")


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
        "multiply_packed": [POINTER(Product), size, place, place, c_int32],
        "sum_words": [size, size, place, place, c_int32],
        "attend": [POINTER(Layer), POINTER(Tokens), *[place, size, size] * 3, place, c_int32],
        "decode": [POINTER(Program), POINTER(Step)],
    }
    try:
        library = ctypes.CDLL(str(made))
        for name, arguments in signatures.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int32
    except (OSError, AttributeError) as error:
        raise NotBuiltError(f"what the compiler made cannot be loaded: {error}") from error
    return library
