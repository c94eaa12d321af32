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

from batchproof_engines.paged.attention import AttentionForm


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
    seq_lens: Tensor  # (B,) int64: keys to see, the fed one last; 0: padding, of the trash lane
    num_columns: int  # no row has more blocks than so many


class Span(NamedTuple):
    """A prefill row as the host sees it."""

    lane: int
    start: int  # its first token among the step's T
    query_len: int
    context_len: int


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Rows with several fed tokens each: the step's tokens behind its decode rows."""

    lanes: Tensor  # (P,) int64
    context_lens: Tensor  # (P,) int64
    starts: Tensor  # (P + 1,) int64: where each row begins among the step's T tokens, and the end
    num_columns: int  # no row has more blocks than so many
    slots: Tensor  # (N,) int64: cells of the flattened pool, one for each of the step's last N tokens
    spans: tuple[Span, ...] | None  # the same on the host; None in a captured step, which may not know


@dataclass(frozen=True, slots=True)
class StepRows:
    """What a step's queries read, and where its keys go. Tensors are on the pool's device."""

    decodes: DecodeRows | None
    prefills: PrefillRows | None


class Kernels(Protocol):
    """Queries are (T, num_heads, qk_dim), keys and values (T, num_kv_heads, dim), strided as the model
    made them; results (T, num_heads, v_dim), contiguous. `tables` is (num_lanes + 1, columns) int32.

    `decode` and `prefill` put their own rows' keys and values into the cache, write their own rows of
    `out` and leave the others. Both may be captured in a CUDA graph: they never wait for the device,
    and the shape of what they launch hangs on nothing but the shapes of their arguments and
    `rows.num_columns`; `prefill` only where `rows.spans` is None.
    """

    def decode(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: LayerCache,
        tables: Tensor,
        rows: DecodeRows,
        form: AttentionForm,
        out: Tensor,
    ) -> None:
        """The fed token's cell is that of position seq_len - 1 in its lane's table. Padding rows touch
        no cell but those of the trash block; what they leave in `out` is finite."""
        ...

    def prefill(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: LayerCache,
        tables: Tensor,
        rows: PrefillRows,
        form: AttentionForm,
        out: Tensor,
    ) -> None:
        """Rows may be empty (starts equal). Of the N tokens of `rows.slots`, those behind the last
        row's end are padding: their keys go to their slots, their places in `out` may be left."""
        ...

    def tune(
        self, cache: LayerCache, num_heads: int, form: AttentionForm, num_seqs: int, seq_len: int
    ) -> None:
        """Choose by measurement how to go through the keys of layers like this, for so many sequences
        of about so many tokens. For a pool without sequences; its content stays as it is."""
        ...

    def graph_columns(self, num_columns: int, width: int) -> int:
        """For how many columns to capture a step whose rows have up to `num_columns` blocks, the tables
        being `width` wide: few different answers make few graphs."""
        ...


def load_kernels(name: str) -> Kernels:
    """`torch` works everywhere; `triton` where `triton_works`."""
    if name not in ("torch", "triton"):
        raise ValueError(f"kernels {name!r} are not known, but must be 'torch' or 'triton'")
    module: Kernels = import_module(f"batchproof_engines.paged.{name}_kernels")
    return module


def triton_works() -> bool:
    """Is Triton installed, and does it have something to run on: CUDA, or its own interpreter?"""
    runs = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
    return runs and find_spec("triton") is not None
