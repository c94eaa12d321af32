"""Triton: operations on a tile of keys and values, shared by decode and prefill.

Scores are float32 whatever the dtype of keys and values, except float64 for float64. Running softmax:
Milakov and Gimelshein, 2018.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"

import os
from dataclasses import dataclass
from functools import cache
from math import gcd, log
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from batchproof_paged.kernels import LayerCache

KIB = 1024


@dataclass(frozen=True, slots=True)
class DecodeSweep:
    """How a program of the decode kernel iterates over its keys."""

    tile_bytes: int = 16 * KIB  # of keys and values at a time
    num_stages: int = 5  # on NVIDIA: keys and values get one buffer each up to 4 stages, two with 5
    num_warps: int = 4
    programs: int = 4  # desired at a time on each processor


@dataclass(frozen=True, slots=True)
class PrefillSweep:
    """How a program of the prefill kernel iterates over its keys, and how many queries it serves."""

    tile_bytes: int = 32 * KIB
    num_stages: int = 2
    max_queries: int = 128  # tokens times heads in a tile
    query_bytes: int = 32 * KIB  # the most that queries may take on chip
    queries_per_warp: int = 16  # within 4 to 8 warps

    def num_warps(self, num_queries: int) -> int:
        return min(8, max(4, num_queries // self.queries_per_warp))


@dataclass(frozen=True, slots=True)
class Sweeps:
    """The constants of both kernels."""

    decode: DecodeSweep = DecodeSweep()
    prefill: PrefillSweep = PrefillSweep()


# Without TF32, float32 cannot use the tensor cores and needs registers instead.
_WIDE = PrefillSweep(16 * KIB, 2, 64, 32 * KIB, 4)
_BY_SIZE = {2: Sweeps(), 4: Sweeps(prefill=_WIDE), 8: Sweeps(DecodeSweep(num_stages=3), _WIDE)}


def is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _has_little_memory(device: torch.device) -> bool:
    """Compute capability 8.x, some GPUs of which have 99 KiB on chip for a program."""
    return not is_interpreted() and torch.cuda.get_device_capability(device) < (9, 0)


def sweeps_for(layer: LayerCache) -> Sweeps:
    size = layer.keys.element_size()
    if size == 2 and _has_little_memory(layer.keys.device):
        return Sweeps(prefill=PrefillSweep(16 * KIB))
    return _BY_SIZE[size]


INTERPRETED = tl.constexpr(is_interpreted())
LOG2_E = tl.constexpr(1 / log(2))
MOST_ENTRIES = 4  # of a table for a tile: more take more instructions than one for each key


@triton.jit
def read(
    keys,
    values,
    table,
    start,
    end,
    inside,
    kv_head,
    num_kv_heads: tl.constexpr,
    qk_dim: tl.constexpr,
    v_dim: tl.constexpr,
    block_size: tl.constexpr,
    padded_qk: tl.constexpr,
    padded_v: tl.constexpr,
    tile: tl.constexpr,
    step: tl.constexpr,
):
    """Loads one sequence's keys (padded_qk, tile) and values (tile, padded_v) from position `start` on,
    a multiple of `step`, which is before `end`.

    They are 0 where not `inside` (tile,). Neither cells that are not nor the table behind `end` are
    read.
    """
    offsets = tl.arange(0, tile)
    if step == 1:
        places = start + offsets
        blocks = tl.load(table + places // block_size, mask=inside, other=0).to(tl.int64)
        cells = blocks * block_size + places % block_size
    else:
        cells = tl.zeros([tile], tl.int64)
        for nth in tl.static_range(tile // step):  # the compiler knows each key's, and selects nothing
            place = tl.minimum(start + nth * step, end - 1)
            block = tl.load(table + place // block_size).to(tl.int64)
            cell = block * block_size
            if block_size > step:
                cell += place // step * step % block_size
            cells = tl.where(offsets // step == nth, cell, cells)
        cells += offsets % step
    cells = cells * num_kv_heads + kv_head
    dims = tl.arange(0, padded_qk)[:, None]
    key = tl.load(
        keys + cells[None, :] * qk_dim + dims, mask=inside[None, :] & (dims < qk_dim), other=0.0
    )
    dims = tl.arange(0, padded_v)[None, :]
    value = tl.load(
        values + cells[:, None] * v_dim + dims, mask=inside[:, None] & (dims < v_dim), other=0.0
    )
    return key, value


@triton.jit
def product(left, right, number: tl.constexpr):
    """Returns left @ right with elements of type `number`."""
    if INTERPRETED:  # it multiplies the bit patterns of bfloat16 (triton-lang/triton#11584)
        left, right = left.to(number), right.to(number)
    # "ieee": otherwise the tensor cores would round float32 to a mantissa of 10 bits.
    return tl.dot(left, right, input_precision="ieee", out_dtype=number)


@triton.jit
def scored(query, key, visible, scaling: tl.constexpr, softcap: tl.constexpr, number: tl.constexpr):
    """Returns scores (M, N) of type `number` for `query` (M, dim) and `key` (dim, N), -inf where not
    visible."""
    scores = scaled(product(query, key, number), scaling, softcap)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def scaled(products, scaling: tl.constexpr, softcap: tl.constexpr):
    """Returns scores to the base of 2: with a softcap, softcap * tanh(scaling * products / softcap)."""
    if softcap is None:
        scores = products * (scaling * LOG2_E)
    else:
        tanh = 2 / (1 + tl.exp2(products * (-2 * LOG2_E * scaling / softcap))) - 1
        scores = tanh * (softcap * LOG2_E)
    return scores


@triton.jit
def folded(scores, value, highest, total, mixed):
    """Folds another tile into a running softmax.

    Its state is the highest score (M,), the sum of 2**(score - highest) (M,), and the sum of those
    times the values (M, v_dim).
    """
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    # For a query that has seen no key so far, any finite shift will do: 2**-inf is 0.
    shift = tl.where(new_highest == float("-inf"), 0.0, new_highest)
    shares = tl.exp2(scores - shift[:, None])
    fading = tl.exp2(highest - shift)
    total = total * fading + tl.sum(shares, 1)
    mixed = mixed * fading[:, None] + product(shares.to(value.dtype), value, mixed.dtype)
    return new_highest, total, mixed


@triton.jit
def with_sink(sink, highest, total, mixed):
    """Adds a logit without a value to the denominator of a running softmax."""
    sink *= LOG2_E
    new_highest = tl.maximum(highest, sink)
    fading = tl.exp2(highest - new_highest)
    return new_highest, total * fading + tl.exp2(sink - new_highest), mixed * fading[:, None]


def with_unit_stride(rows: Tensor) -> Tensor:
    """Returns (T, heads, dim) with contiguous heads, as the kernels require."""
    return rows if rows.stride(2) == 1 else rows.contiguous()


def padded(size: int) -> int:
    """Returns a size that `tl.dot` accepts: the next power of two, at least 16."""
    return max(16, int(triton.next_power_of_2(size)))


def tile_for(cache: LayerCache, padded_dims: int, tile_bytes: int) -> int:
    fitting = max(16, tile_bytes // (padded_dims * cache.keys.element_size()))
    return min(128, 1 << (fitting.bit_length() - 1))


def step_for(tile: int, block_size: int) -> int:
    """Returns how many neighbouring keys of a tile share a table entry that is loaded once; 1 where
    entries would be too many. Tiles must begin at multiples of it."""
    step = gcd(tile, block_size)
    return step if tile // step <= MOST_ENTRIES else 1


def number_for(cache: LayerCache) -> Any:
    return tl.float64 if cache.keys.dtype is torch.float64 else tl.float32
