"""The definition of the attention mask, as plain loops that are easy to verify (promise P6)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from batchproof.api import RowRecord
from batchproof.checks.broken import broken
from batchproof.findings.finding import Facts, Rule


def brute_force_mask(rows: Sequence[RowRecord], window: int | None) -> list[list[bool]]:
    """Returns `mask[q][k]`, whether query q may attend to key k, in the order of
    `MaskingEngine.attention_mask`."""
    queries = [
        (index, row.context_len + offset)
        for index, row in enumerate(rows)
        for offset in range(row.query_len)
    ]
    cached = [
        (index, position) for index, row in enumerate(rows) for position in range(row.context_len)
    ]
    keys = cached + queries
    return [
        [
            row_q == row_k and pos_k <= pos_q and (window is None or pos_q - pos_k < window)
            for row_k, pos_k in keys
        ]
        for row_q, pos_q in queries
    ]


def require_mask(got: Tensor, rows: Sequence[RowRecord], window: int | None) -> None:
    """Raises `BrokenPromise` unless the mask, bool `(queries, keys)`, equals the definition."""
    layout = [(row.context_len, row.query_len) for row in rows]
    asked: Facts = {"layout": layout, "window": window}
    expected = torch.tensor(brute_force_mask(rows, window))
    if got.dtype is not torch.bool or got.shape != expected.shape:
        given, wanted = (f"{each.dtype} {tuple(each.shape)}" for each in (got, expected))
        raise broken(Rule.MASK_SHAPE, got=given, should_be=wanted, **asked)
    wrong = (got.cpu() != expected).nonzero().tolist()
    if not wrong:
        return
    row_of = [row.request_id for row in rows for _ in range(row.query_len)]
    cached = [row.request_id for row in rows for _ in range(row.context_len)]
    is_leak = any(row_of[query] != (cached + row_of)[key] for query, key in got.nonzero().tolist())
    query, key = wrong[0]
    raise broken(
        Rule.MASK_LEAK if is_leak else Rule.MASK,
        first=f"query {query} {'sees' if got[query, key] else 'does not see'} key {key}",
        num_others=len(wrong) - 1,
        **asked,
    )


def require_moves(
    query: int, position: int, moved: float, should_move: bool | None, bound: float, allowed: float
) -> None:
    """Raises `BrokenPromise` if a query's logits move although they must not, or stay although they
    must move.

    `moved` is the largest change of a logit. A query that cannot see the changed position may move
    by `allowed` at most; one that must see it moves by more than `bound`. With `should_move` None
    both are right.
    """
    name = f"prefix-{query + 1}"
    facts: Facts = {"query": query, "position": position, "bound": bound}
    if should_move is False and not moved <= allowed:  # `not`: a NaN must fail, here and below
        raise broken(Rule.UNSEEN_MOVES, name, moved=moved, **facts)
    if should_move is True and not moved > bound:
        raise broken(Rule.SEEN_STAYS, name, moved=moved, **facts)
