"""Triton: how a decode row's keys are divided into shares ("splits") and their results merged.

Split-KV decoding: Dao et al., "Flash-Decoding", 2023.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from batchproof_paged.triton_tiles import LOG2_E, padded, take_turn


class Splits(NamedTuple):
    """The division of each row."""

    num: int
    min_tiles: int = 1  # of a share; the last ones may be empty


MAX_SPLITS = 64
MIN_SHARE = 2  # tiles: a smaller share takes less time than its merging
USUAL_KEYS = 8192  # rows of more get longer shares, not more of them
EVEN_KEYS = 2048  # rows up to so many finish together well enough
LONG_SHARE = 1024  # keys of a share where rows are enough, but may differ in length
MOST_WAVES = 4  # then: most programs may find nothing to do
SHARE_TILES = 2  # the overhead of a program and its share, in tiles that could be read meanwhile


@triton.jit(do_not_specialize=["num_splits"])
def _merge_kernel(
    partial,
    log_totals,
    sinks,
    out,
    num_splits,
    num_heads: tl.constexpr,
    v_dim: tl.constexpr,
    padded_splits: tl.constexpr,
    padded_v: tl.constexpr,
    pdl: tl.constexpr,
):
    """Merges the shares of one row and head; one program each."""
    take_turn(pdl)
    head = tl.program_id(1)
    place = tl.program_id(0).to(tl.int64) * num_heads + head
    splits = tl.arange(0, padded_splits)
    v_dims = tl.arange(0, padded_v)
    is_split = splits < num_splits
    weights = tl.load(log_totals + place * num_splits + splits, mask=is_split, other=float("-inf"))
    is_part = (weights > float("-inf"))[:, None] & (v_dims < v_dim)[None, :]
    cells = (place * num_splits + splits)[:, None] * v_dim + v_dims[None, :]
    parts = tl.load(partial + cells, mask=is_part, other=0.0)
    highest = tl.max(weights, 0)
    if sinks is not None:
        sink = tl.load(sinks + head).to(weights.dtype) * LOG2_E
        highest = tl.maximum(highest, sink)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2(weights - highest)
    total = tl.sum(weights, 0)
    if sinks is not None:
        total += tl.exp2(sink - highest)
    result = tl.sum(parts * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + place * v_dim + v_dims, result.to(out.dtype.element_ty), mask=v_dims < v_dim)


def merge(
    partial: Tensor, log_totals: Tensor, sinks: Tensor | None, out: Tensor, launch: dict[str, bool]
) -> None:
    """Merges shares into the first B rows of `out`.

    `partial` (B, num_heads, num_splits, v_dim) and `log_totals` (B, num_heads, num_splits) are float32;
    the latter are the logarithms to base 2 of the softmaxes' denominators, -inf for an empty share.
    """
    num_rows, num_heads, num_splits, v_dim = partial.shape
    _merge_kernel[num_rows, num_heads](
        partial,
        log_totals,
        sinks,
        out,
        num_splits,
        num_heads=num_heads,
        v_dim=v_dim,
        padded_splits=max(8, triton.next_power_of_2(num_splits)),
        padded_v=padded(v_dim),
        **launch,
    )


@cache
def splits_for(num_programs: int, num_keys: int, tile: int, slots: int) -> Splits:
    """Returns how to divide rows of up to `num_keys` keys, read in tiles of `tile`, to minimise the
    GPU's time.

    There are `num_programs` without splits, and `slots` of them run at a time. A captured step knows
    only the width of its tables, so very long rows are not counted with: they get longer shares.
    """
    num_tiles = min(num_keys, USUAL_KEYS) / tile
    most = int(min(max(num_tiles // MIN_SHARE, 1), MAX_SPLITS))

    def duration(num_splits: int) -> float:
        # All waves but the last are full, and each takes as long as a share and its overhead.
        waves = -(-num_programs * num_splits // slots)
        return waves * (num_tiles / num_splits + SHARE_TILES)

    num_splits = min(range(1, most + 1), key=duration)
    if num_splits > 1 or num_keys <= EVEN_KEYS:
        return Splits(num_splits, MIN_SHARE)
    # There are rows enough for all processors, but the longest would finish alone.
    num_splits = min(-(-num_keys // LONG_SHARE), MOST_WAVES * slots // num_programs)
    return Splits(max(1, num_splits), LONG_SHARE // tile)
