"""Attention over a pool of blocks with torch alone: correct on any device, but it copies all keys and
values that are read. What a query may not see has no effect, to the bit, not even NaN."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from batchproof_paged.attention import AttentionForm
from batchproof_paged.kernels import DecodeRows, LayerPass, PrefillRows


def attend_dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    form: AttentionForm,
    visible: Tensor | None,
    is_causal: bool,
) -> Tensor:
    """Attends: `query` (B, num_heads, Q, qk_dim), `key` (B, num_kv_heads, K, qk_dim), `value` with
    v_dim -> (B, num_heads, Q, v_dim).

    `visible` is bool and broadcasts to (B, 1, Q, K). None means all keys or, with `is_causal`, those up
    to the query's own, where Q equals K. Finite keys and values that are not visible have no effect, to
    the bit.
    """
    if form.softcap is None and form.sinks is None:
        return _attend_plainly(query, key, value, form.scaling, visible, is_causal)
    if is_causal:
        visible = query.new_ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
    groups = query.shape[1] // key.shape[1]
    keys, values = (each.repeat_interleave(groups, dim=1).float() for each in (key, value))
    scores = query.float() @ keys.transpose(2, 3) * form.scaling
    if form.softcap is not None:
        scores = torch.tanh(scores / form.softcap) * form.softcap
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    if form.sinks is not None:
        sinks = form.sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)
        shares = torch.cat([scores, sinks], dim=3).softmax(dim=3)[..., :-1]
    else:
        shares = scores.softmax(dim=3)
    return (shares @ values).to(query.dtype)


def visible_keys(
    queries: range, keys: range, window: int | None, device: torch.device | None = None
) -> Tensor:
    """Returns which keys at these positions the queries at theirs may see, bool (Q, K): those up to
    their own, or the last `window` of them."""
    positions = torch.arange(queries.start, queries.stop, device=device)[:, None]
    distance = positions - torch.arange(keys.start, keys.stop, device=device)
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def _attend_plainly(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, visible: Tensor | None, is_causal: bool
) -> Tensor:
    num_sequences, num_heads, num_queries, head_size = query.shape
    num_kv_heads = key.shape[1]
    if num_queries == 1:  # the heads of a group pass for queries of one head: its keys are read once
        grouped = query.reshape(num_sequences, num_kv_heads, num_heads // num_kv_heads, head_size)
        attended = scaled_dot_product_attention(grouped, key, value, attn_mask=visible, scale=scaling)
        return attended.reshape(num_sequences, num_heads, 1, value.shape[3])
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=visible,
        is_causal=is_causal,
        scale=scaling,
        enable_gqa=num_heads != num_kv_heads,
    )


def decode(given: LayerPass, rows: DecodeRows) -> None:
    """See `Kernels.decode`."""
    tokens, block_size = slice(len(rows.lanes)), given.cache.keys.shape[1]
    places = rows.seq_lens.clamp(min=1) - 1  # for a padding row, the trash block's first cell
    blocks = given.tables[rows.lanes, places // block_size].long()
    write(given, tokens, blocks * block_size + places % block_size)
    _attend_singly(given, tokens, rows)


def _attend_singly(given: LayerPass, tokens: slice, rows: DecodeRows) -> None:
    """Attends for rows of one query each, those of `tokens`, whose keys are all in the cache."""
    query, _, _, cache, tables, form, out = given
    query, out, num_rows = query[tokens], out[tokens], len(rows.lanes)
    blocks = tables[rows.lanes, : rows.num_columns]
    keys, values = (_gathered(each, blocks).transpose(1, 2) for each in (cache.keys, cache.values))
    visible = _visible_keys(rows, form.window, keys.shape[2])
    # A weight of zero does not cancel a NaN that other sequences left there.
    keys, values = (each.masked_fill_(~visible.mT, 0.0) for each in (keys, values))
    queries = query[:, :, None]
    if form.sinks is None:
        # All queries have the same position, so the heads of a group may pass for queries of one head.
        queries = queries.reshape(num_rows, keys.shape[1], -1, query.shape[2])
    attended = attend_dense(queries, keys, values, form, visible, is_causal=False)
    out[:] = attended.reshape(out.shape)


def prefill(given: LayerPass, rows: PrefillRows) -> None:
    """See `Kernels.prefill`."""
    query, _, _, cache, tables, form, out = given
    fed, block_size = slice(-len(rows.slots), None), cache.keys.shape[1]
    write(given, fed, rows.slots)
    if rows.spans is None:
        _attend_singly(given, fed, _as_decodes(rows, len(query) - len(rows.slots), len(tables) - 1))
        return
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
        positions = range(span.context_len, seq_len), range(seq_len)
        visible = None if is_causal else visible_keys(*positions, form.window, query.device)
        attended = attend_dense(queries, keys, values, form, visible, is_causal)
        out[tokens] = attended[0].transpose(0, 1)


def _as_decodes(rows: PrefillRows, first: int, trash_lane: int) -> DecodeRows:
    """Returns each fed token, the first of which is `first`, as a row of its own, which is slow but
    needs no knowledge of the rows on the host. Tokens that belong to no row become padding."""
    tokens = torch.arange(first, first + len(rows.slots), device=rows.slots.device)
    is_fed = tokens < rows.starts[-1]
    owners = torch.searchsorted(rows.starts, tokens, right=True) - 1
    owners = owners.clamp(max=len(rows.lanes) - 1)
    seq_lens = rows.context_lens[owners] + tokens - rows.starts[owners] + 1
    lanes = torch.where(is_fed, rows.lanes[owners], trash_lane)
    return DecodeRows(lanes, torch.where(is_fed, seq_lens, 0), rows.num_columns)


def write(given: LayerPass, tokens: slice, slots: Tensor) -> None:
    given.cache.keys.flatten(0, 1)[slots] = given.key[tokens]
    given.cache.values.flatten(0, 1)[slots] = given.value[tokens]


def _gathered(cells: Tensor, blocks: Tensor) -> Tensor:
    """Gathers `cells` (capacity, block_size, heads, dim) by `blocks` (B, columns) -> (B, columns *
    block_size, heads, dim)."""
    return cells[blocks].flatten(1, 2)


def _visible_keys(rows: DecodeRows, window: int | None, num_keys: int) -> Tensor:
    """Returns which keys each row's query may see, (B, 1, 1, num_keys)."""
    # A padding row sees the first cell of the trash block: a softmax over no keys would be NaN.
    seq_lens = rows.seq_lens.clamp(min=1)[:, None]
    places = torch.arange(num_keys, device=seq_lens.device)
    visible = places < seq_lens
    if window is not None:
        visible &= places >= seq_lens - window
    return visible[:, None, None]
