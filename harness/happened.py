"""Did it happen? A test of preemption, chunking or slot reuse proves nothing if it did not."""

from __future__ import annotations

from collections.abc import Sequence

from harness.api import StepRecord


def has_preemption(trace: Sequence[StepRecord]) -> bool:
    return any(record.preempted for record in trace)


def has_chunk(trace: Sequence[StepRecord]) -> bool:
    """Was some prompt fed in parts?"""
    return any(not row.is_sampled for record in trace for row in record.rows)


def has_mixed_step(trace: Sequence[StepRecord]) -> bool:
    """Did a prompt ride with somebody's decode?"""
    return any(
        any(row.context_len == 0 for row in record.rows)
        and any(row.context_len > 0 and row.query_len == 1 and row.is_sampled for row in record.rows)
        for record in trace
    )


def has_slot_reuse(trace: Sequence[StepRecord], max_num_seqs: int) -> bool:
    """Were more requests admitted than there are slots?"""
    return len({each for record in trace for each in record.admitted}) > max_num_seqs
