"""What a run with cancelled requests must show (promise P13)."""

from __future__ import annotations

from collections.abc import Sequence

from batchproof.api import Request, StepRecord
from batchproof.checks.broken import broken
from batchproof.findings.finding import Facts, Rule
from batchproof.workload.workloads import Outcome, Workload


def require_all_free(final: StepRecord) -> None:
    """Raises `BrokenPromise` unless all blocks are free in the last step."""
    free, total = final.num_free_blocks, final.num_total_blocks
    if free is None or total is None or free == total:
        return
    rule = Rule.CANCELLED_BLOCKS if free < total else Rule.FREED_TWICE
    raise broken(rule, num_free=free, num_total=total)


def require_one_row(final: StepRecord) -> None:
    """Raises `BrokenPromise` if the last step feeds more than the one request that was added
    afterwards."""
    if len({row.request_id for row in final.rows}) != 1:
        raise broken(Rule.CANCELLED_ROW)


def require_not_fed(workload: Workload, outcome: Outcome, trace: Sequence[StepRecord]) -> None:
    """Raises `BrokenPromise` if a request is fed in the step of its abort, or later."""
    for request_id, step in workload.aborts:
        if step >= len(outcome.trace_lens):
            continue
        start = outcome.trace_lens[step]
        for number, record in enumerate(trace[start:], start):
            if any(row.request_id == request_id for row in record.rows):
                facts: Facts = {"cancelled_at": step, "num_records": start, "record": number}
                raise broken(Rule.CANCELLED_FED, request_id, **facts)


def require_no_token_after(outcome: Outcome, request_id: str, cancelled_at: int) -> None:
    """Raises `BrokenPromise` if the request gets a token in the step of its abort, or later."""
    for step, event in outcome.events:
        is_late = step >= cancelled_at and event.token_id is not None
        if event.request_id == request_id and is_late:
            raise broken(Rule.CANCELLED_TOKEN, request_id, step, cancelled_at=cancelled_at)


def require_beginning(request: Request, got: Sequence[int], right: Sequence[int]) -> None:
    """Raises `BrokenPromise` unless the tokens are the first of the right answer."""
    if list(got) != list(right[: len(got)]):
        raise broken(Rule.CANCELLED_ANSWER, request.request_id, got=got, should_be=right)
