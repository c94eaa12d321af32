"""Triton: the rows of one token. Few queries read many keys, so it is memory that must be kept busy.

One program reads one share ("split") of one row's keys for one key head, and serves all the query
heads of that head's group with it. Where there is more than one split, each leaves its result and the
logarithm of its softmax's denominator, and a second kernel weighs them.

Split-KV decoding: Dao et al., "Flash-Decoding", 2023.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from implementations.paged.attention import AttentionForm
from implementations.paged.kernels import DecodeRows, LayerCache
from implementations.paged.triton_tiles import folded, padded, read, scored, tile_for, with_sink

MAX_SPLITS = 64


@triton.jit
def _decode_kernel(
    query,
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
    table_stride,
    scaling,
    softcap,
    window,
    num_kv_heads: tl.constexpr,
    group: tl.constexpr,
    qk_dim: tl.constexpr,
    v_dim: tl.constexpr,
    block_size: tl.constexpr,
    num_splits: tl.constexpr,
    padded_group: tl.constexpr,
    padded_qk: tl.constexpr,
    padded_v: tl.constexpr,
    tile: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    table = tables + tl.load(lanes + row) * table_stride
    end = tl.load(seq_lens + row).to(tl.int32)
    begin = 0
    if window is not None:
        begin = tl.maximum(end - window, 0)
    share = tl.cdiv(tl.cdiv(end - begin, num_splits), tile) * tile
    begin += split * share
    end = tl.minimum(end, begin + share)

    in_group = tl.arange(0, padded_group)
    heads = kv_head * group + in_group
    qk_dims = tl.arange(0, padded_qk)
    v_dims = tl.arange(0, padded_v)
    queries = query + row * query_stride + heads[:, None] * query_head_stride + qk_dims[None, :]
    is_query = (in_group < group)[:, None] & (qk_dims < qk_dim)[None, :]
    q = tl.load(queries, mask=is_query, other=0.0)

    highest = tl.full([padded_group], float("-inf"), tl.float32)
    total = tl.zeros([padded_group], tl.float32)
    mixed = tl.zeros([padded_group, padded_v], tl.float32)
    for start in range(begin, end, tile):
        places = start + tl.arange(0, tile)
        inside = places < end
        k, v = read(
            keys,
            values,
            table,
            places,
            inside,
            kv_head,
            num_kv_heads,
            qk_dim,
            v_dim,
            block_size,
            padded_qk,
            padded_v,
        )
        scores = scored(q, k, inside[None, :], scaling, softcap)
        highest, total, mixed = folded(scores, v, highest, total, mixed)

    is_head = in_group < group
    is_out = is_head[:, None] & (v_dims < v_dim)[None, :]
    places = row * num_kv_heads * group + heads
    if num_splits == 1:
        if sinks is not None:
            sink = tl.load(sinks + heads, mask=is_head, other=0.0).to(tl.float32)
            highest, total, mixed = with_sink(sink, highest, total, mixed)
        result = mixed / tl.where(total > 0, total, 1.0)[:, None]
        result = result.to(out.dtype.element_ty)
        tl.store(out + places[:, None] * v_dim + v_dims[None, :], result, mask=is_out)
    else:
        places = places * num_splits + split
        # Of an empty share only the -inf is stored; the second kernel reads no more of it either.
        log_total = tl.where(total > 0, highest + tl.log(tl.where(total > 0, total, 1.0)), highest)
        tl.store(log_totals + places, log_total, mask=is_head)
        result = mixed / tl.where(total > 0, total, 1.0)[:, None]
        is_out = is_out & (begin < end)
        tl.store(partial + places[:, None] * v_dim + v_dims[None, :], result, mask=is_out)


@triton.jit
def _merge_kernel(
    partial,
    log_totals,
    sinks,
    out,
    num_heads: tl.constexpr,
    v_dim: tl.constexpr,
    num_splits: tl.constexpr,
    padded_splits: tl.constexpr,
    padded_v: tl.constexpr,
):
    """One program for one row and head."""
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
        sink = tl.load(sinks + head).to(tl.float32)
        highest = tl.maximum(highest, sink)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp(weights - highest)
    total = tl.sum(weights, 0)
    if sinks is not None:
        total += tl.exp(sink - highest)
    result = tl.sum(parts * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + place * v_dim + v_dims, result.to(out.dtype.element_ty), mask=v_dims < v_dim)


def decode(
    query: Tensor,
    cache: LayerCache,
    tables: Tensor,
    rows: DecodeRows,
    form: AttentionForm,
    out: Tensor,
    num_splits: int | None = None,
) -> None:
    """See `Kernels`. `num_splits`: of each row's keys; None: so many that all processors have work."""
    num_rows, num_heads, v_dim = len(rows.lanes), *out.shape[1:]
    block_size, num_kv_heads, qk_dim = cache.keys.shape[1:]
    padded_qk, padded_v = padded(qk_dim), padded(v_dim)
    tile = tile_for(cache, padded_qk + padded_v)
    if num_splits is None:
        num_keys = min(rows.num_columns * block_size, form.window or 2**62)
        num_splits = splits_for(num_rows * num_kv_heads, num_keys // tile, query.device)
    partial = log_totals = out  # not touched if there is one split
    if num_splits > 1:
        partial = out.new_empty(num_rows, num_heads, num_splits, v_dim, dtype=torch.float32)
        log_totals = out.new_empty(num_rows, num_heads, num_splits, dtype=torch.float32)
    query = query if query.stride(2) == 1 else query.contiguous()
    _decode_kernel[num_rows, num_kv_heads, num_splits](
        query,
        cache.keys,
        cache.values,
        tables,
        rows.lanes,
        rows.seq_lens,
        form.sinks,
        out,
        partial,
        log_totals,
        query.stride(0),
        query.stride(1),
        tables.stride(0),
        form.scaling,
        form.softcap,
        form.window,
        num_kv_heads=num_kv_heads,
        group=num_heads // num_kv_heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
        block_size=block_size,
        num_splits=num_splits,
        padded_group=padded(num_heads // num_kv_heads),
        padded_qk=padded_qk,
        padded_v=padded_v,
        tile=tile,
        num_warps=4,
        num_stages=3,
    )
    if num_splits > 1:
        _merge_kernel[num_rows, num_heads](
            partial,
            log_totals,
            form.sinks,
            out,
            num_heads=num_heads,
            v_dim=v_dim,
            num_splits=num_splits,
            padded_splits=triton.next_power_of_2(num_splits),
            padded_v=padded_v,
        )


def splits_for(num_programs: int, num_tiles: int, device: torch.device) -> int:
    """A power of two, so that few variants are compiled, and two tiles at least for each."""
    num_processors = 1
    if device.type == "cuda":
        num_processors = torch.cuda.get_device_properties(device).multi_processor_count
    wanted = min(2 * num_processors // num_programs, num_tiles // 2, MAX_SPLITS)
    return 1 << (max(wanted, 1).bit_length() - 1)
