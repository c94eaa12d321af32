"""Triton: rows of one token. Few queries read many keys, so memory bandwidth is the limit.

One program reads one share ("split") of a row's keys for one key head, and serves all query heads of
that head's group. The fed token's own key and value are not in the cache yet: the first split starts
from them and stores them. If there is more than one split, each stores its result and the logarithm of
its softmax's denominator, and a second kernel merges them.

Split-KV decoding: Dao et al., "Flash-Decoding", 2023.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from batchproof_paged.kernels import DecodeRows, LayerPass
from batchproof_paged.triton_tiles import (
    LOG2_E,
    folded,
    num_processors,
    number_for,
    padded,
    read,
    scaled,
    scored,
    step_for,
    sweeps_for,
    tile_for,
    with_sink,
    with_unit_stride,
)


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
):
    """Merges the shares of one row and head; one program each."""
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


def merge(partial: Tensor, log_totals: Tensor, sinks: Tensor | None, out: Tensor) -> None:
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


@triton.jit(
    do_not_specialize=["table_stride", "window", "num_splits", "min_tiles"],
    do_not_specialize_on_alignment=["lanes", "seq_lens"],
)
def _decode_kernel(
    query,
    key,
    value,
    keys,
    values,
    tables,
    lanes,
    seq_lens,
    sinks,
    out,
    partial,
    log_totals,
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    table_stride,
    window,
    num_splits,
    min_tiles,
    scaling: tl.constexpr,
    softcap: tl.constexpr,
    num_kv_heads: tl.constexpr,
    group: tl.constexpr,
    qk_dim: tl.constexpr,
    v_dim: tl.constexpr,
    block_size: tl.constexpr,
    padded_group: tl.constexpr,
    padded_qk: tl.constexpr,
    padded_v: tl.constexpr,
    tile: tl.constexpr,
    step: tl.constexpr,
    number: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    table = tables + tl.load(lanes + row) * table_stride
    seq_len = tl.load(seq_lens + row).to(tl.int32)
    is_first = (split == 0) & (seq_len > 0)
    place = seq_len - 1  # of the fed token
    seen_from = 0 if window is None else tl.maximum(seq_len - window, 0)
    begin, end = _share(seen_from // step * step, place, split, num_splits, min_tiles, tile)

    in_group = tl.arange(0, padded_group)
    is_head = in_group < group
    heads = kv_head * group + in_group
    results = row * num_kv_heads * group + heads
    if partial is not None:
        results = results * num_splits + split
        if (begin >= end) & (split > 0):  # an empty share, of which the second kernel reads no more
            tl.store(log_totals + results, float("-inf"), mask=is_head)
            return
    qk_dims = tl.arange(0, padded_qk)
    v_dims = tl.arange(0, padded_v)
    queries = query + row * query_stride + heads[:, None] * query_head_stride + qk_dims[None, :]
    q = tl.load(queries, mask=is_head[:, None] & (qk_dims < qk_dim)[None, :], other=0.0)

    block = tl.load(table + place // block_size, mask=is_first, other=0).to(tl.int64)
    cell = (block * block_size + place % block_size) * num_kv_heads + kv_head
    key += row * key_stride + kv_head * key_head_stride
    own_key = _moved(key, keys + cell * qk_dim, qk_dims, is_first & (qk_dims < qk_dim)).to(number)
    value += row * value_stride + kv_head * value_head_stride
    own_value = _moved(value, values + cell * v_dim, v_dims, is_first & (v_dims < v_dim)).to(number)

    score = scaled(tl.sum(q.to(number) * own_key[None, :], 1), scaling, softcap)
    highest = tl.where(is_first, score, float("-inf"))
    total = tl.where(is_first, 1.0, 0.0) + tl.zeros([padded_group], number)
    mixed = own_value[None, :] + tl.zeros([padded_group, padded_v], number)
    for start in range(begin, end, tile):
        places = start + tl.arange(0, tile)
        inside = places < end
        if window is not None:
            inside = inside & (places >= seen_from)
        k, v = read(
            keys,
            values,
            table,
            start,
            end,
            inside,
            kv_head,
            num_kv_heads,
            qk_dim,
            v_dim,
            block_size,
            padded_qk,
            padded_v,
            tile,
            step,
        )
        scores = scored(q, k, inside[None, :], scaling, softcap, number)
        highest, total, mixed = folded(scores, v, highest, total, mixed)

    if partial is None and sinks is not None:
        sink = tl.load(sinks + heads, mask=is_head, other=0.0).to(number)
        highest, total, mixed = with_sink(sink, highest, total, mixed)
    divisor = tl.where(total > 0, total, 1.0)
    if partial is not None:
        tl.store(log_totals + results, highest + tl.log2(divisor), mask=is_head)
    target = out if partial is None else partial
    result = (mixed / divisor[:, None]).to(target.dtype.element_ty)
    is_out = is_head[:, None] & (v_dims < v_dim)[None, :]
    tl.store(target + results[:, None] * v_dim + v_dims[None, :], result, mask=is_out)


@triton.jit
def _share(seen_from, num_cached, split, num_splits, min_tiles, tile: tl.constexpr):
    """Returns the range of positions, begin and end, of the cached keys that a split reads."""
    num_tiles = tl.cdiv(tl.cdiv(tl.maximum(num_cached - seen_from, 0), num_splits), tile)
    share = tl.maximum(num_tiles, min_tiles) * tile
    begin = seen_from + split * share
    return begin, tl.minimum(num_cached, begin + share)


@triton.jit
def _moved(source, target, dims, mask):
    numbers = tl.load(source + dims, mask=mask, other=0.0)
    tl.store(target + dims, numbers, mask=mask)
    return numbers


def decode(given: LayerPass, rows: DecodeRows, splits: Splits | None = None) -> None:
    """See `Kernels.decode`. With `splits` None, rows are divided so that all processors have work."""
    query, key, value, cache, tables, form, out = given
    num_rows, num_heads, v_dim = len(rows.lanes), *out.shape[1:]
    block_size, num_kv_heads, qk_dim = cache.keys.shape[1:]
    padded_qk, padded_v = padded(qk_dim), padded(v_dim)
    sweep = sweeps_for(cache).decode
    tile = tile_for(cache, padded_qk + padded_v, sweep.tile_bytes)
    if splits is None:
        num_keys = min(rows.num_columns * block_size, form.window or 2**62)
        slots = sweep.programs * num_processors(query.device)
        splits = splits_for(num_rows * num_kv_heads, num_keys, tile, slots)
    partial = log_totals = None
    if splits.num > 1:
        wide = torch.promote_types(out.dtype, torch.float32)
        partial = out.new_empty(num_rows, num_heads, splits.num, v_dim, dtype=wide)
        log_totals = out.new_empty(num_rows, num_heads, splits.num, dtype=wide)
    query, key, value = map(with_unit_stride, (query, key, value))
    _decode_kernel[num_rows, num_kv_heads, splits.num](
        query,
        key,
        value,
        cache.keys,
        cache.values,
        tables,
        rows.lanes,
        rows.seq_lens,
        form.sinks,
        out,
        partial,
        log_totals,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        tables.stride(0),
        form.window,
        *splits,
        scaling=form.scaling,
        softcap=form.softcap,
        num_kv_heads=num_kv_heads,
        group=num_heads // num_kv_heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
        block_size=block_size,
        padded_group=padded(num_heads // num_kv_heads),
        padded_qk=padded_qk,
        padded_v=padded_v,
        tile=tile,
        step=step_for(tile, block_size),
        number=number_for(cache),
        num_warps=sweep.num_warps,
        num_stages=sweep.num_stages,
    )
    if partial is not None and log_totals is not None:
        merge(partial, log_totals, form.sinks, out)
