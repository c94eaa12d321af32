"""The arguments of attention kernels over a pool of blocks, and the available sets of kernels.

Rows with one token and rows with several are served by different functions: the former are many and
have little work each, the latter are few and have much.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from batchproof_paged.attention import AttentionForm


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, contiguous, in blocks or in lanes."""

    keys: Tensor  # (capacity, block_size, num_kv_heads, qk_dim), or as `native.Layer.of` says
    values: Tensor  # the same with v_dim

    @property
    def num_bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


class LayerPass(NamedTuple):
    """One layer's share of a step: what attends, to what, how, and where the results go."""

    query: Tensor  # (T, num_heads, qk_dim), strided as the model made it, as are key and value
    key: Tensor  # (T, num_kv_heads, qk_dim)
    value: Tensor  # (T, num_kv_heads, v_dim)
    cache: LayerCache
    tables: Tensor  # (num_lanes + 1, columns) int32: the blocks of each lane
    form: AttentionForm
    out: Tensor  # (T, num_heads, v_dim), contiguous


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Rows with one fed token each: the first B tokens of the step."""

    lanes: Tensor  # (B,) int64: the row of the block tables
    seq_lens: Tensor  # (B,) int64: visible keys, the fed one last; 0: padding, in the trash lane
    num_columns: int  # the most blocks that a row has


class Span(NamedTuple):
    """A prefill row as known to the host."""

    lane: int
    start: int  # its first token among the step's T
    query_len: int
    context_len: int


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Rows with several fed tokens each: the tokens of the step after its decode rows."""

    lanes: Tensor  # (P,) int64
    context_lens: Tensor  # (P,) int64
    starts: Tensor  # (P + 1,) int64: the first token of each row among the step's T, and the end
    num_columns: int  # the most blocks that a row has
    slots: Tensor  # (N,) int64: cells of the flattened pool, one for each of the step's last N tokens
    spans: tuple[Span, ...] | None  # the same on the host; None in a captured step


@dataclass(frozen=True, slots=True)
class StepRows:
    """What the queries of a step read and where its keys go; tensors are on the pool's device."""

    decodes: DecodeRows | None
    prefills: PrefillRows | None


class Kernels(NamedTuple):
    """A set of kernels.

    `decode` and `prefill` write their own rows' keys and values to the cache and their own rows of
    `out`, and leave the other rows alone. Both may be captured in a CUDA graph: they never wait for the
    device, and the shape of what they launch depends only on the shapes of their arguments and on
    `rows.num_columns`. For `prefill` this holds only if `rows.spans` is None.

    `decode` serves rows of one token, whose cell is that of position seq_len - 1 in its lane's table.
    Padding rows touch only cells of the trash block, and what they leave in `out` is finite.

    `prefill` serves rows of several tokens, some of which may be empty (equal starts). Of the N tokens
    of `rows.slots`, those after the end of the last row are padding: their keys go to their slots, and
    where `rows.spans` is None, what they leave in `out` is finite.
    """

    decode: Callable[[LayerPass, DecodeRows], None]
    prefill: Callable[[LayerPass, PrefillRows], None]
    gathers: bool  # all `num_columns` of each row are read, not only those with visible keys


MODULES = {  # of decode and of prefill
    "torch": ("torch_kernels", "torch_kernels"),
    "triton": ("triton_decode", "triton_prefill"),
    "invariant": ("invariant", "invariant"),
}


def load_kernels(name: str) -> Kernels:
    """Returns the set "torch", which works everywhere, "triton", which needs `triton_works`, or
    "invariant", whose results depend on no other row."""
    decodes, prefills = (import_module(f"batchproof_paged.{each}") for each in MODULES[name])
    return Kernels(decodes.decode, prefills.prefill, gathers=name != "triton")


def triton_works() -> bool:
    """Returns whether Triton is installed and has something to run on: CUDA or its own interpreter."""
    runs = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
    return runs and find_spec("triton") is not None
