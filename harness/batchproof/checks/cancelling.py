"""What a run with cancelled requests must come to (promise P13)."""

from __future__ import annotations

from collections.abc import Sequence

from batchproof.api import (
    Capability,
    Engine,
    FinishReason,
    Request,
    StepRecord,
)
from batchproof.causes import Cause
from batchproof.checks.relations import blame
from batchproof.checks.verdict import ConformanceFailure
from batchproof.promises import Promise
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Outcome, Workload

AFTERWARDS = Request("afterwards", (2, 7, 1), 2)


def check_run_with_aborts(trial: Trial, workload: Workload, engine: Engine) -> Outcome:
    """Run it, then one more request on the same engine; judge survivors and leftovers."""
    with blame(Promise.P13, "beside a cancelled request"):
        outcome = trial.run(workload, engine)
        with trial.reporting(workload):
            _judge(trial, workload, outcome)
            if Capability.TRACING in trial.capabilities:
                _require_not_fed(workload, outcome, trial.trace_of(engine))
        trial.check(Workload((AFTERWARDS,), workload.config, arrivals=(0,)), engine)
        if Capability.TRACING in trial.capabilities:
            final = trial.trace_of(engine)[-1]
            with trial.reporting(workload):
                _require_all_free(final)
                if len({row.request_id for row in final.rows}) != 1:
                    raise ConformanceFailure(Promise.P13, "a cancelled request is still being fed")
    return outcome


def _require_all_free(final: StepRecord) -> None:
    free, total = final.num_free_blocks, final.num_total_blocks
    if free is None or total is None or free == total:
        return
    what = "a cancelled request still holds some" if free < total else "some were freed twice"
    raise ConformanceFailure(
        Promise.P13,
        f"{free} of {total} blocks are free at the end: {what}",
        cause=Cause.CANCEL if free < total else Cause.ACCOUNTING,
    )


def _require_not_fed(workload: Workload, outcome: Outcome, trace: Sequence[StepRecord]) -> None:
    """From the step of its abort on, nothing is fed for a request."""
    for request_id, step in workload.aborts:
        if step >= len(outcome.trace_lens):
            continue
        start = outcome.trace_lens[step]
        for number, record in enumerate(trace[start:], start):
            if any(row.request_id == request_id for row in record.rows):
                raise ConformanceFailure(
                    Promise.P13,
                    f"request {request_id!r} was cancelled before step {step}, when the trace had "
                    f"{start} records, but record {number} still feeds it",
                    cause=Cause.CANCEL,
                )


def _judge(trial: Trial, workload: Workload, outcome: Outcome) -> None:
    cancelled_at = dict(workload.aborts)
    survivors = [r for r in workload.requests if r.request_id not in cancelled_at]
    by_id = {completion.request_id: completion for completion in outcome.completions}
    trial.judge(survivors, Outcome(tuple(by_id[r.request_id] for r in survivors)))
    for request in workload.requests:
        if request.request_id not in cancelled_at:
            continue
        got = by_id[request.request_id]
        right, _ = trial.oracle.expected(request)
        late = [
            step
            for step, event in outcome.events
            if event.request_id == request.request_id
            and event.token_id is not None
            and step >= cancelled_at[request.request_id]
        ]
        if late:
            raise ConformanceFailure(
                Promise.P13,
                f"request {request.request_id!r} was cancelled before step "
                f"{cancelled_at[request.request_id]}, but got a token in step {late[0]}",
            ).found_by("cancel", request_id=request.request_id)
        if got.finish_reason is FinishReason.ABORTED:
            _check_prefix(trial, request, got.token_ids, right)
        else:  # it had finished before it was cancelled
            trial.judge([request], Outcome((got,)))


def _check_prefix(trial: Trial, request: Request, got: Sequence[int], right: Sequence[int]) -> None:
    if trial.oracle.is_exact and list(got) != list(right[: len(got)]):
        raise ConformanceFailure(
            Promise.P13,
            f"cancelled request {request.request_id!r} had wrong tokens",
            [f"got:       {list(got)}", f"should be: {list(right)}"],
        )
