"""Ends that no scheduler can foresee, and how late an engine may learn of them (promise P9).

An engine that reads its tokens late (`batchproof.api.DelayedEngine`) may let an EOS before the cap
take effect as late as it declares. Nothing else may be late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchproof.api import Completion, FinishReason, Request, StepRecord
from batchproof.findings.finding import Finding, Rule, found
from batchproof.workload.workloads import Workload

NONE_GRANTED = "no delay is granted: only an EOS before the cap may be late, if the engine declares so"


def is_unforeseen(request: Request, completion: Completion) -> bool:
    """Returns whether an EOS ended the request before its cap."""
    is_short = len(completion.token_ids) < request.max_new_tokens
    return is_short and completion.finish_reason is FinishReason.STOP


@dataclass(frozen=True, slots=True)
class LateEnds:
    """When each request's last token was sampled in a trace, and how late that may take effect.

    `sampled_in`: request id -> the step that sampled its last token. `granted`: request id -> steps
    by which it may finish later, which is the declared delay for an unforeseen end; others have no
    entry. `num_surplus`: request id -> later samples that may be discarded.
    """

    sampled_in: Mapping[str, int] = field(default_factory=dict)
    granted: Mapping[str, int] = field(default_factory=dict)
    num_surplus: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        trace: Sequence[StepRecord],
        workload: Workload,
        completions: Sequence[Completion],
        delay: int,
    ) -> LateEnds:
        """Returns the ends in this trace; `delay` is the declared one, in steps. A request with
        fewer samples than tokens has no entry: other rules judge it."""
        requests = {request.request_id: request for request in workload.requests}
        due = {each.request_id: len(each.token_ids) for each in completions}  # samples to come
        granted = {
            each.request_id: delay
            for each in completions
            if delay and is_unforeseen(requests[each.request_id], each)
        }
        sampled_in: dict[str, int] = {}
        num_surplus: Counter[str] = Counter()
        finished: set[str] = set()
        for step, record in enumerate(trace):
            for row in record.rows:
                if not row.is_sampled:
                    continue
                name = row.request_id
                was_due = due.get(name, 0)
                due[name] = was_due - row.num_sampled
                if was_due > 0 and due[name] <= 0:
                    sampled_in[name] = step
                elif name in sampled_in and name not in finished:
                    num_surplus[name] += step <= sampled_in[name] + granted.get(name, 0)
            finished.update(record.finished)
        return cls(sampled_in, granted, num_surplus)

    def is_late(self, request_id: str, step: int) -> bool:
        """Returns whether the request has ended before this step, but the engine need not know it
        yet."""
        return self.has_ended(request_id, step) and step <= self._latest(request_id)

    def has_ended(self, request_id: str, step: int) -> bool:
        """Returns whether its last token was sampled before this step."""
        return self.sampled_in.get(request_id, step) < step

    def finishes_in_time(self, request_id: str, step: int) -> bool:
        """Returns whether it may finish in this step; True for a request without an entry."""
        sampled_in = self.sampled_in.get(request_id)
        return sampled_in is None or sampled_in <= step <= self._latest(request_id)

    def _latest(self, request_id: str) -> int:
        return self.sampled_in[request_id] + self.granted.get(request_id, 0)


IN_TIME = LateEnds()  # every end takes effect at once


def late_end_findings(trace: Sequence[StepRecord], ends: LateEnds) -> Iterator[Finding]:
    """Yields ends that take effect in another step than their own, or an EOS before the cap later than
    declared (P9)."""
    for step, record in enumerate(trace):
        for each in record.finished:
            if not ends.finishes_in_time(each, step):
                yield _late(Rule.LATE_FINISH, each, step, ends)
        for each in record.admitted:
            if ends.has_ended(each, step):
                yield _late(Rule.LATE_ADMISSION, each, step, ends)
        for row in record.rows:
            is_decode = row.query_len == 1 and row.is_sampled
            if ends.has_ended(row.request_id, step) and not is_decode:
                num_tokens = row.query_len
                yield _late(Rule.LATE_ROWS, row.request_id, step, ends, num_tokens=num_tokens)


def _late(rule: Rule, request_id: str, step: int, ends: LateEnds, **facts: Any) -> Finding:
    delay = ends.granted.get(request_id, 0)
    granted = f"scheduling_delay: {delay} steps, as declared" if delay else NONE_GRANTED
    sampled_in = ends.sampled_in[request_id]
    return found(rule, request_id, step, sampled_in=sampled_in, granted=granted, **facts)
