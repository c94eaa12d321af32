"""The definition of the attention mask, as plain loops that are easy to verify (promise P6)."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from batchproof.api import RowRecord
from batchproof.findings.finding import Facts, Finding, Rule, found


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


def mask_findings(got: Tensor, rows: Sequence[RowRecord], window: int | None) -> Iterator[Finding]:
    """Yields where the mask, bool `(queries, keys)`, differs from the definition: keys of other
    sequences that it shows first."""
    layout = [(row.context_len, row.query_len) for row in rows]
    asked: Facts = {"layout": layout, "window": window}
    expected = torch.tensor(brute_force_mask(rows, window))
    if got.dtype is not torch.bool or got.shape != expected.shape:
        given, wanted = (f"{each.dtype} {tuple(each.shape)}" for each in (got, expected))
        yield found(Rule.MASK_SHAPE, got=given, should_be=wanted, **asked)
        return
    of_query = [row.request_id for row in rows for _ in range(row.query_len)]
    of_key = [row.request_id for row in rows for _ in range(row.context_len)] + of_query
    wrong = (got.cpu() != expected).nonzero().tolist()
    leaks = [(query, key) for query, key in wrong if of_query[query] != of_key[key]]
    own = [(query, key) for query, key in wrong if of_query[query] == of_key[key]]
    for rule, bits in ((Rule.MASK_LEAK, leaks), (Rule.MASK, own)):
        for query, key in bits[:1]:
            first = f"query {query} {'sees' if got[query, key] else 'does not see'} key {key}"
            yield found(rule, first=first, num_others=len(wrong) - 1, **asked)


def move_findings(
    query: int, position: int, moved: float, should_move: bool | None, bound: float, allowed: float
) -> Iterator[Finding]:
    """Yields a finding if a query's logits move although they must not, or stay although they must
    move.

    `moved` is the largest change of a logit. A query that cannot see the changed position may move
    by `allowed` at most; one that must see it moves by more than `bound`. With `should_move` None
    both are right.
    """
    name = f"prefix-{query + 1}"
    facts: Facts = {"query": query, "position": position, "bound": bound}
    if should_move is False and not moved <= allowed:  # `not`: a NaN must fail, here and below
        yield found(Rule.UNSEEN_MOVES, name, moved=moved, **facts)
    if should_move is True and not moved > bound:
        yield found(Rule.SEEN_STAYS, name, moved=moved, **facts)
