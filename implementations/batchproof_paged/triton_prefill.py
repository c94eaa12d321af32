"""Triton: writes the fed tokens to the pool, and serves rows of several tokens.

One program serves a tile of one row's queries with one key head. A tile has tokens times the heads of
the group, so that short chunks fill it as well as long ones. All keys are read through the block table,
including the fed ones, which the write kernel has stored before.

The number of programs follows from shapes alone, so that a step can be captured whose rows the host
does not know: a program finds its row by bisection, and some find nothing to do.

Tiling and running softmax: Dao et al., "FlashAttention", 2022. Tiles counted over all rows, and the
search for a tile's row: vLLM's `triton_unified_attention.py`.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor

from batchproof_paged.kernels import LayerCache, LayerPass, PrefillRows
from batchproof_paged.triton_tiles import (
    folded,
    number_for,
    padded,
    read,
    scored,
    step_for,
    sweeps_for,
    tile_for,
    with_sink,
    with_unit_stride,
)


@triton.jit(do_not_specialize_on_alignment=["slots"])
def _write_kernel(
    key,
    value,
    slots,
    keys,
    values,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    num_kv_heads: tl.constexpr,
    qk_dim: tl.constexpr,
    v_dim: tl.constexpr,
    padded_heads: tl.constexpr,
    padded_qk: tl.constexpr,
    padded_v: tl.constexpr,
):
    """Writes the keys and values of one token; one program each."""
    token = tl.program_id(0).to(tl.int64)
    cells = tl.load(slots + token) * num_kv_heads
    heads = tl.arange(0, padded_heads)[:, None]
    dims = tl.arange(0, padded_qk)[None, :]
    mask = (heads < num_kv_heads) & (dims < qk_dim)
    k = tl.load(key + token * key_stride + heads * key_head_stride + dims, mask=mask)
    tl.store(keys + (cells + heads) * qk_dim + dims, k, mask=mask)
    dims = tl.arange(0, padded_v)[None, :]
    mask = (heads < num_kv_heads) & (dims < v_dim)
    v = tl.load(value + token * value_stride + heads * value_head_stride + dims, mask=mask)
    tl.store(values + (cells + heads) * v_dim + dims, v, mask=mask)


@triton.jit
def _tiles_before(starts, row, group: tl.constexpr, num_queries: tl.constexpr):
    """Returns the number of tiles of the rows before `row`.

    Each row has one tile more than its queries fill, because its last one may be partial.
    """
    num_pairs = (tl.load(starts + row) - tl.load(starts)) * group
    return (num_pairs // num_queries).to(tl.int32) + row


@triton.jit
def _row_of(index, starts, num_rows, group: tl.constexpr, num_queries: tl.constexpr):
    row = 0
    beyond = num_rows
    while beyond - row > 1:
        middle = (row + beyond) // 2
        is_beyond = _tiles_before(starts, middle, group, num_queries) > index
        beyond = tl.where(is_beyond, middle, beyond)
        row = tl.where(is_beyond, row, middle)
    return row


@triton.jit(
    do_not_specialize=["table_stride", "window", "num_rows", "num_tokens"],
    do_not_specialize_on_alignment=["lanes", "context_lens", "starts"],
)
def _prefill_kernel(
    query,
    keys,
    values,
    tables,
    lanes,
    context_lens,
    starts,
    sinks,
    out,
    query_stride,
    query_head_stride,
    table_stride,
    window,
    num_rows,
    num_tokens,
    scaling: tl.constexpr,
    softcap: tl.constexpr,
    num_kv_heads: tl.constexpr,
    group: tl.constexpr,
    qk_dim: tl.constexpr,
    v_dim: tl.constexpr,
    block_size: tl.constexpr,
    padded_qk: tl.constexpr,
    padded_v: tl.constexpr,
    num_queries: tl.constexpr,
    tile: tl.constexpr,
    step: tl.constexpr,
    number: tl.constexpr,
):
    # The last tiles of a row see the most keys, so they run first.
    index = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    row = _row_of(index, starts, num_rows + 1, group, num_queries)
    first = (index - _tiles_before(starts, row, group, num_queries)) * num_queries
    row_start = tl.load(starts + row)
    is_row = row < num_rows  # else it is the padding behind the last row, which sees no keys
    row_end = tl.load(starts + row + 1, mask=is_row, other=num_tokens)
    query_len = (row_end - row_start).to(tl.int32)
    if first >= query_len * group:
        return
    context_len = tl.load(context_lens + row, mask=is_row, other=0).to(tl.int32)
    table = tables + tl.load(lanes + row, mask=is_row, other=0) * table_stride

    queries = first + tl.arange(0, num_queries)
    tokens = queries // group
    heads = kv_head * group + queries % group
    is_fed = tokens < query_len
    positions = context_len + tokens
    qk_dims = tl.arange(0, padded_qk)
    v_dims = tl.arange(0, padded_v)
    cells = (row_start + tokens) * query_stride + heads * query_head_stride
    is_query = is_fed[:, None] & (qk_dims < qk_dim)[None, :]
    q = tl.load(query + cells[:, None] + qk_dims[None, :], mask=is_query, other=0.0)

    end = tl.minimum(context_len + query_len, context_len + (first + num_queries - 1) // group + 1)
    end = tl.where(is_row, end, 0)
    seen_from = 0 if window is None else tl.maximum(context_len + first // group + 1 - window, 0)
    highest = tl.full([num_queries], float("-inf"), number)
    total = tl.zeros([num_queries], number)
    mixed = tl.zeros([num_queries, padded_v], number)
    for start in range(seen_from // step * step, end, tile):
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
        visible = inside[None, :] & (places[None, :] <= positions[:, None])
        if window is not None:
            visible = visible & (places[None, :] > positions[:, None] - window)
        scores = scored(q, k, visible, scaling, softcap, number)
        highest, total, mixed = folded(scores, v, highest, total, mixed)

    if sinks is not None:
        sink = tl.load(sinks + heads).to(number)
        highest, total, mixed = with_sink(sink, highest, total, mixed)
    result = mixed / tl.where(total > 0, total, 1.0)[:, None]
    cells = ((row_start + tokens) * num_kv_heads * group + heads) * v_dim
    is_out = is_fed[:, None] & (v_dims < v_dim)[None, :]
    result = result.to(out.dtype.element_ty)
    tl.store(out + cells[:, None] + v_dims[None, :], result, mask=is_out)


def prefill(given: LayerPass, rows: PrefillRows) -> None:
    """See `Kernels.prefill`."""
    query, key, value, cache, tables, form, out = given
    query, key, value = map(with_unit_stride, (query, key, value))
    num_tokens = len(rows.slots)
    _write(cache, rows.slots, key[-num_tokens:], value[-num_tokens:])
    num_rows, num_heads, v_dim = len(rows.lanes), *out.shape[1:]
    block_size, num_kv_heads, qk_dim = cache.keys.shape[1:]
    group = num_heads // num_kv_heads
    padded_qk, padded_v = padded(qk_dim), padded(v_dim)
    sweep = sweeps_for(cache).prefill
    fitting = max(16, sweep.query_bytes // (padded_qk * query.element_size()))
    tile = tile_for(cache, padded_qk + padded_v, sweep.tile_bytes)
    num_queries = min(sweep.max_queries, fitting, padded(num_tokens * group))
    _prefill_kernel[num_tokens * group // num_queries + num_rows + 1, num_kv_heads](
        query,
        cache.keys,
        cache.values,
        tables,
        rows.lanes,
        rows.context_lens,
        rows.starts,
        form.sinks,
        out,
        *query.stride()[:2],
        tables.stride(0),
        form.window,
        num_rows,
        len(out),
        scaling=form.scaling,
        softcap=form.softcap,
        num_kv_heads=num_kv_heads,
        group=group,
        qk_dim=qk_dim,
        v_dim=v_dim,
        block_size=block_size,
        padded_qk=padded_qk,
        padded_v=padded_v,
        num_queries=num_queries,
        tile=tile,
        step=step_for(tile, block_size),
        number=number_for(cache),
        num_warps=sweep.num_warps(num_queries),
        num_stages=sweep.num_stages,
    )


def _write(cache: LayerCache, slots: Tensor, key: Tensor, value: Tensor) -> None:
    num_tokens, num_kv_heads, qk_dim = key.shape
    _write_kernel[num_tokens,](
        key,
        value,
        slots,
        cache.keys,
        cache.values,
        *key.stride()[:2],
        *value.stride()[:2],
        num_kv_heads=num_kv_heads,
        qk_dim=qk_dim,
        v_dim=value.shape[2],
        padded_heads=triton.next_power_of_2(num_kv_heads),
        padded_qk=padded(qk_dim),
        padded_v=padded(value.shape[2]),
    )
