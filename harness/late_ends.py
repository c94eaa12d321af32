"""Ends that no scheduler can foresee, and how late it may learn of them (promise P9).

An engine that reads its tokens late (`harness.api.DelayedEngine`) may let an EOS before the cap take
effect as late as it declares. Nothing else may be late, and nothing may hide behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.api import Completion, FinishReason, Request, StepRecord
from harness.promises import Promise
from harness.verdict import ConformanceFailure, rule
from harness.workloads import Workload

NONE_DECLARED = "scheduling_delay: 0; an engine that reads tokens late declares it, see harness/api.py"


def is_unforeseen(request: Request, completion: Completion) -> bool:
    """Did an EOS end it before its cap?"""
    is_short = len(completion.token_ids) < request.max_new_tokens
    return is_short and completion.finish_reason is FinishReason.STOP


@dataclass(frozen=True, slots=True)
class LateEnds:
    """How late unforeseen ends may be, and where they are in a trace.

    `delay`: steps; 0 of an engine that declares none. `sampled_in`: request id -> the step that sampled
    its EOS. `num_surplus`: request id -> samples that may be discarded, being none too late.
    """

    delay: int = 0
    sampled_in: Mapping[str, int] = field(default_factory=dict)
    num_surplus: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        trace: Sequence[StepRecord],
        workload: Workload,
        completions: Sequence[Completion],
        delay: int,
    ) -> LateEnds:
        """Who has fewer samples than tokens is left out: a finding of others."""
        requests = {request.request_id: request for request in workload.requests}
        due = {  # samples to come, up to the EOS
            each.request_id: len(each.token_ids)
            for each in completions
            if is_unforeseen(requests[each.request_id], each)
        }
        sampled_in: dict[str, int] = {}
        num_surplus: Counter[str] = Counter()
        finished: set[str] = set()
        for step, record in enumerate(trace):
            for row in record.rows:
                name = row.request_id
                if not row.is_sampled or name not in due:
                    continue
                due[name] -= 1
                if due[name] == 0:
                    sampled_in[name] = step
                elif due[name] < 0 and name not in finished:
                    num_surplus[name] += step <= sampled_in[name] + delay
            finished.update(record.finished)
        return cls(delay, sampled_in, num_surplus)

    def is_late(self, request_id: str, step: int) -> bool:
        """Is this a step in which the engine need not know yet that the request has ended?"""
        sampled_in = self.sampled_in.get(request_id)
        return sampled_in is not None and sampled_in < step <= sampled_in + self.delay

    def has_ended(self, request_id: str, step: int) -> bool:
        """Was its EOS sampled before this step?"""
        return self.sampled_in.get(request_id, step) < step


@rule("late-ends")
def check_late_ends(trace: Sequence[StepRecord], ends: LateEnds) -> None:
    """P9: an EOS takes effect in its own step, or as late as the engine declares."""
    for step, record in enumerate(trace):
        for each in record.finished:
            sampled_in = ends.sampled_in.get(each, step)
            if not sampled_in <= step <= sampled_in + ends.delay:
                raise _broken(f"step {step}: request {each!r} finishes", each, ends)
        for each in record.admitted:
            if ends.has_ended(each, step):
                raise _broken(f"step {step}: request {each!r} is admitted", each, ends)
        for row in record.rows:
            is_decode = row.query_len == 1 and row.is_sampled
            if ends.has_ended(row.request_id, step) and not is_decode:
                what = f"{row.query_len} tokens of request {row.request_id!r} are fed"
                raise _broken(f"step {step}: {what}", row.request_id, ends)


def _broken(what: str, request_id: str, ends: LateEnds) -> ConformanceFailure:
    return ConformanceFailure(
        Promise.P9,
        f"{what}, but its EOS was sampled in step {ends.sampled_in[request_id]}",
        [f"scheduling_delay: {ends.delay} steps, as declared" if ends.delay else NONE_DECLARED],
    )
