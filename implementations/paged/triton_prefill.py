"""Triton: writing the fed tokens to the pool, and the rows of several tokens.

One program serves a tile of one row's queries with one key head. Its queries are tokens times the heads
of the group, so that short chunks fill a tile as well as long ones. All keys are read through the block
table, the fed ones too: `write` has put them there.

Tiling and running softmax: Dao et al., "FlashAttention", 2022.
"""
# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from implementations.paged.attention import AttentionForm
from implementations.paged.kernels import LayerCache, PrefillRows
from implementations.paged.triton_tiles import folded, padded, read, scored, tile_for, with_sink

MAX_QUERIES = {2: 128, 4: 64}  # tokens times heads in a tile, by the size of a number
QUERY_BYTES = 32 * 1024  # that they may take on chip


@triton.jit
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
    """One program for one token."""
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
    scaling,
    softcap,
    window,
    num_kv_heads: tl.constexpr,
    group: tl.constexpr,
    qk_dim: tl.constexpr,
    v_dim: tl.constexpr,
    block_size: tl.constexpr,
    padded_qk: tl.constexpr,
    padded_v: tl.constexpr,
    num_queries: tl.constexpr,
    tile: tl.constexpr,
):
    row = tl.program_id(2)
    kv_head = tl.program_id(1)
    # The last tiles of a row see the most keys: they go first.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * num_queries
    row_start = tl.load(starts + row)
    query_len = (tl.load(starts + row + 1) - row_start).to(tl.int32)
    if first >= query_len * group:
        return
    context_len = tl.load(context_lens + row).to(tl.int32)
    table = tables + tl.load(lanes + row) * table_stride

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
    begin = 0
    if window is not None:
        begin = tl.maximum(context_len + first // group + 1 - window, 0)
    highest = tl.full([num_queries], float("-inf"), tl.float32)
    total = tl.zeros([num_queries], tl.float32)
    mixed = tl.zeros([num_queries, padded_v], tl.float32)
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
        visible = inside[None, :] & (places[None, :] <= positions[:, None])
        if window is not None:
            visible = visible & (places[None, :] > positions[:, None] - window)
        scores = scored(q, k, visible, scaling, softcap)
        highest, total, mixed = folded(scores, v, highest, total, mixed)

    if sinks is not None:
        sink = tl.load(sinks + heads).to(tl.float32)
        highest, total, mixed = with_sink(sink, highest, total, mixed)
    result = mixed / tl.where(total > 0, total, 1.0)[:, None]
    cells = ((row_start + tokens) * num_kv_heads * group + heads) * v_dim
    is_out = is_fed[:, None] & (v_dims < v_dim)[None, :]
    result = result.to(out.dtype.element_ty)
    tl.store(out + cells[:, None] + v_dims[None, :], result, mask=is_out)


def write(cache: LayerCache, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """See `Kernels`."""
    num_tokens, num_kv_heads, qk_dim = key.shape
    key, value = (each if each.stride(2) == 1 else each.contiguous() for each in (key, value))
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


def prefill(
    query: Tensor,
    cache: LayerCache,
    tables: Tensor,
    rows: PrefillRows,
    form: AttentionForm,
    out: Tensor,
) -> None:
    """See `Kernels`."""
    num_heads, v_dim = out.shape[1:]
    block_size, num_kv_heads, qk_dim = cache.keys.shape[1:]
    group = num_heads // num_kv_heads
    longest = max(each.query_len for each in rows.spans) * group
    padded_qk, padded_v = padded(qk_dim), padded(v_dim)
    size = query.element_size()
    fitting = max(16, QUERY_BYTES // (padded_qk * size))
    num_queries = min(MAX_QUERIES[size], fitting, padded(longest))
    query = query if query.stride(2) == 1 else query.contiguous()
    _prefill_kernel[triton.cdiv(longest, num_queries), num_kv_heads, len(rows.spans)](
        query,
        cache.keys,
        cache.values,
        tables,
        rows.lanes,
        rows.context_lens,
        rows.starts,
        form.sinks,
        out,
        query.stride(0),
        query.stride(1),
        tables.stride(0),
        form.scaling,
        form.softcap,
        form.window,
        num_kv_heads=num_kv_heads,
        group=group,
        qk_dim=qk_dim,
        v_dim=v_dim,
        block_size=block_size,
        padded_qk=padded_qk,
        padded_v=padded_v,
        num_queries=num_queries,
        tile=tile_for(cache, padded_qk + padded_v),
        num_warps=8 if num_queries == 128 else 4,
        num_stages=2,
    )
