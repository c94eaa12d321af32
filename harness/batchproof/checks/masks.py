"""The definition of the attention mask, in loops a person can check (promise P6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchproof.api import RowRecord


def brute_force_mask(rows: Sequence[RowRecord], window: int | None) -> list[list[bool]]:
    """`mask[q][k]`: may query q attend to key k? In the order of `MaskingEngine.attention_mask`."""
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


def differences(got: Sequence[Sequence[bool]], should_be: Sequence[Sequence[bool]]) -> Iterator[str]:
    """Where two masks of one shape differ, in words."""
    for q, (got_row, right_row) in enumerate(zip(got, should_be, strict=True)):
        for k, (got_bit, right_bit) in enumerate(zip(got_row, right_row, strict=True)):
            if got_bit != right_bit:
                yield f"query {q} {'sees' if got_bit else 'does not see'} key {k}"
