"""Attention over a pool of blocks with torch alone: right on any device, at the price of a copy of the
keys and values that are read. What no query may see has no effect, to the bit, not even NaN."""

from __future__ import annotations

import torch
from torch import Tensor

from implementations.paged.attention import AttentionForm
from implementations.paged.dense import attend_dense
from implementations.paged.kernels import DecodeRows, LayerCache, PrefillRows, Span


def write(cache: LayerCache, slots: Tensor, key: Tensor, value: Tensor) -> None:
    cache.keys.flatten(0, 1)[slots] = key
    cache.values.flatten(0, 1)[slots] = value


def decode(
    query: Tensor,
    cache: LayerCache,
    tables: Tensor,
    rows: DecodeRows,
    form: AttentionForm,
    out: Tensor,
) -> None:
    num_rows = len(rows.lanes)
    blocks = tables[rows.lanes, : rows.num_columns]
    keys, values = (_gathered(each, blocks).transpose(1, 2) for each in (cache.keys, cache.values))
    visible = _visible_keys(rows, form.window, keys.shape[2])
    # A weight of zero makes nothing of a NaN that others left there.
    keys, values = (each.masked_fill_(~visible.mT, 0.0) for each in (keys, values))
    queries = query[:num_rows, :, None]
    if form.sinks is None:
        # All queries stand at the same place, so a group of heads may pass for queries of one head.
        queries = queries.reshape(num_rows, keys.shape[1], -1, query.shape[2])
    attended = attend_dense(queries, keys, values, form, visible, is_causal=False)
    out[:num_rows] = attended.reshape(out[:num_rows].shape)


def prefill(
    query: Tensor,
    cache: LayerCache,
    tables: Tensor,
    rows: PrefillRows,
    form: AttentionForm,
    out: Tensor,
) -> None:
    block_size = cache.keys.shape[1]
    for span in rows.spans:
        tokens = slice(span.start, span.start + span.query_len)
        seq_len = span.context_len + span.query_len
        blocks = tables[span.lane, : -(-seq_len // block_size)]
        keys, values = (
            _gathered(each, blocks[None])[:, :seq_len].transpose(1, 2)
            for each in (cache.keys, cache.values)
        )
        queries = query[tokens].transpose(0, 1)[None]
        is_causal = span.context_len == 0 and (form.window is None or seq_len <= form.window)
        visible = None if is_causal else _visible_to_each(span, form.window, query.device)
        attended = attend_dense(queries, keys, values, form, visible, is_causal)
        out[tokens] = attended[0].transpose(0, 1)


def graph_columns(num_columns: int, width: int) -> int:
    """A power of two: no more than twice what is needed is read."""
    return int(min(1 << (num_columns - 1).bit_length(), width))


def _gathered(cells: Tensor, blocks: Tensor) -> Tensor:
    """`cells` (capacity, block_size, heads, dim), `blocks` (B, columns) -> (B, columns * block_size,
    heads, dim)."""
    return cells[blocks].flatten(1, 2)


def _visible_keys(rows: DecodeRows, window: int | None, num_keys: int) -> Tensor:
    """(B, 1, 1, num_keys)."""
    # A padding row sees the first cell of the trash block: a softmax over nothing is not a number.
    seq_lens = rows.seq_lens.clamp(min=1)[:, None]
    places = torch.arange(num_keys, device=seq_lens.device)
    visible = places < seq_lens
    if window is not None:
        visible &= places >= seq_lens - window
    return visible[:, None, None]


def _visible_to_each(span: Span, window: int | None, device: torch.device) -> Tensor:
    """(query_len, seq_len): the keys up to each query's own."""
    queries = torch.arange(span.query_len, device=device)[:, None] + span.context_len
    distance = queries - torch.arange(span.context_len + span.query_len, device=device)
    visible = distance >= 0
    return visible if window is None else visible & (distance < window)
