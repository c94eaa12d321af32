"""Attention over keys that lie side by side, in every form that a layer may ask for."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from batchproof_paged.attention import AttentionForm


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
