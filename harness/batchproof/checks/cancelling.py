"""What a run with cancelled requests must show (promise P13)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchproof.api import Request, StepRecord
from batchproof.findings.finding import Facts, Finding, Rule, found
from batchproof.workload.workloads import Outcome, Workload


def free_findings(final: StepRecord) -> Iterator[Finding]:
    """Yields a finding unless all blocks are free in the last step."""
    free, total = final.num_free_blocks, final.num_total_blocks
    if free is None or total is None or free == total:
        return
    rule = Rule.CANCELLED_BLOCKS if free < total else Rule.FREED_TWICE
    yield found(rule, num_free=free, num_total=total)


def row_findings(final: StepRecord) -> Iterator[Finding]:
    """Yields a finding if the last step feeds more than the one request that was added afterwards."""
    if len({row.request_id for row in final.rows}) != 1:
        yield found(Rule.CANCELLED_ROW)


def fed_findings(
    workload: Workload, outcome: Outcome, trace: Sequence[StepRecord]
) -> Iterator[Finding]:
    """Yields requests that are fed in the step of their abort, or later."""
    for request_id, step in workload.aborts:
        if step >= len(outcome.trace_lens):
            continue
        start = outcome.trace_lens[step]
        for number, record in enumerate(trace[start:], start):
            if any(row.request_id == request_id for row in record.rows):
                facts: Facts = {"cancelled_at": step, "num_records": start, "record": number}
                yield found(Rule.CANCELLED_FED, request_id, **facts)


def late_token_findings(outcome: Outcome, request_id: str, cancelled_at: int) -> Iterator[Finding]:
    """Yields tokens that the request gets in the step of its abort, or later."""
    for step, event in outcome.events:
        is_late = step >= cancelled_at and event.token_id is not None
        if event.request_id == request_id and is_late:
            yield found(Rule.CANCELLED_TOKEN, request_id, step, cancelled_at=cancelled_at)


def beginning_findings(request: Request, got: Sequence[int], right: Sequence[int]) -> Iterator[Finding]:
    """Yields a finding unless the tokens are the first of the right answer."""
    if list(got) != list(right[: len(got)]):
        yield found(Rule.CANCELLED_ANSWER, request.request_id, got=got, should_be=right)
