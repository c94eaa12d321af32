"""What attention kernels over a pool of blocks are given, and which sets of them there are.

A set is a module with the functions of `Kernels`. Rows of one token and rows of several are served by
different functions, for the first are many and short of work, and the second are few and full of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from implementations.paged.attention import AttentionForm


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, contiguous."""

    keys: Tensor  # (capacity, block_size, num_kv_heads, qk_dim)
    values: Tensor  # (capacity, block_size, num_kv_heads, v_dim)

    @property
    def num_bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Rows with one fed token each: the step's first B tokens."""

    lanes: Tensor  # (B,) int64: the row of the block tables
    seq_lens: Tensor  # (B,) int64: keys to see, the fed one among them; 0: padding, reads nothing
    num_columns: int  # no row has more blocks than so many


class Span(NamedTuple):
    """A prefill row as the host sees it."""

    lane: int
    start: int  # its first token among the step's T
    query_len: int
    context_len: int


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Rows with several fed tokens each."""

    lanes: Tensor  # (P,) int64
    context_lens: Tensor  # (P,) int64
    starts: Tensor  # (P + 1,) int64: where each row begins among the step's T tokens, and the end
    spans: tuple[Span, ...]  # the same on the host


@dataclass(frozen=True, slots=True)
class StepRows:
    """Where a step's tokens go, and what its queries read. Tensors are on the pool's device."""

    slots: Tensor  # (T,) int64: cells of the flattened pool
    decodes: DecodeRows | None
    prefills: PrefillRows | None


class Kernels(Protocol):
    """Queries are (T, num_heads, qk_dim) and results (T, num_heads, v_dim), contiguous.

    `decode` and `prefill` write their own rows of `out` and leave the others. `tables` is (num_lanes +
    1, columns) int32. `write` and `decode` may be captured in a CUDA graph: they never wait for the
    device, and the shape of what they launch hangs on nothing but the shapes of their arguments and
    `rows.num_columns`.
    """

    def write(self, cache: LayerCache, slots: Tensor, key: Tensor, value: Tensor) -> None: ...

    def decode(
        self,
        query: Tensor,
        cache: LayerCache,
        tables: Tensor,
        rows: DecodeRows,
        form: AttentionForm,
        out: Tensor,
    ) -> None: ...

    def prefill(
        self,
        query: Tensor,
        cache: LayerCache,
        tables: Tensor,
        rows: PrefillRows,
        form: AttentionForm,
        out: Tensor,
    ) -> None: ...

    def graph_columns(self, num_columns: int, width: int) -> int:
        """For how many columns to capture a decode step whose rows have up to `num_columns` blocks,
        the tables being `width` wide: few different answers make few graphs."""
        ...


def load_kernels(name: str) -> Kernels:
    """`torch` works everywhere; `triton` where `triton_works`."""
    if name not in ("torch", "triton"):
        raise ValueError(f"kernels {name!r} are not known, but must be 'torch' or 'triton'")
    module: Kernels = import_module(f"implementations.paged.{name}_kernels")
    return module


def triton_works() -> bool:
    """Is Triton installed, and does it have something to run on: CUDA, or its own interpreter?"""
    runs = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
    return runs and find_spec("triton") is not None
