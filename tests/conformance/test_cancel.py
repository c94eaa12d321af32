"""P13: abort in any state frees everything and changes no one else's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.api import Capability, EngineConfig, FinishReason, Request, StepRecord, TracingEngine
from harness.causes import Cause
from harness.happened import has_preemption
from harness.promises import Promise
from harness.relations import blame
from harness.strategies import prompts, workloads
from harness.trial import Trial
from harness.verdict import ConformanceFailure
from harness.workloads import Outcome, Workload

pytestmark = [
    pytest.mark.promise(id="P13"),
    pytest.mark.needs("stepping"),
    pytest.mark.one_model,
]


def check_cancelled(trial: Trial, workload: Workload, must_preempt: bool = False) -> None:
    """Run it, then one more request on the same engine; judge survivors and leftovers."""
    last = Request("afterwards", (2, 7, 1), 2)
    with trial.engine(workload.config) as engine, blame(Promise.P13, "beside a cancelled request"):
        outcome = trial.run(workload, engine)
        with trial.reporting(workload):
            _judge(trial, workload, outcome)
            if Capability.TRACING in trial.capabilities:
                _require_not_fed(workload, outcome, cast(TracingEngine, engine).trace)
        after = Workload((last,), workload.config, arrivals=(0,))
        trial.check(after, engine)
        if Capability.TRACING not in trial.capabilities:
            return
        trace = cast(TracingEngine, engine).trace
        with trial.reporting(workload):
            final = trace[-1]
            _require_all_free(final)
            if len({row.request_id for row in final.rows}) != 1:
                raise ConformanceFailure(Promise.P13, "a cancelled request is still being fed")
            if must_preempt:
                trial.must_show("preemption", has_preemption(trace))


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
    is_exact = trial.subject.oracle is not None or trial.subject.dtype_name == "float32"
    if is_exact and list(got) != list(right[: len(got)]):
        raise ConformanceFailure(
            Promise.P13,
            f"cancelled request {request.request_id!r} had wrong tokens",
            [f"got:       {list(got)}", f"should be: {list(right)}"],
        )


@given(data=st.data())
def test_a_request_may_be_cancelled_at_any_step(trial: Trial, data: st.DataObject) -> None:
    drawn = workloads(trial.oracle, trial.capabilities, min_requests=2, with_arrivals=True)
    workload = data.draw(drawn)
    # Ids that begin alike: an abort means one of them.
    ids = ["r" * (index + 1) for index in range(len(workload.requests))]
    renamed = zip(workload.requests, ids, strict=True)
    workload = workload.with_requests([replace(each, request_id=name) for each, name in renamed])
    chosen = data.draw(st.sets(st.sampled_from(ids), min_size=1, max_size=3), label="cancelled")
    assert workload.arrivals is not None, "asked for above"
    arrived = dict(zip(ids, workload.arrivals, strict=True))
    after = st.integers(0, 12)  # steps from its arrival to the abort
    aborts = tuple(
        (each, arrived[each] + data.draw(after, label="cancelled after")) for each in sorted(chosen)
    )
    check_cancelled(trial, replace(workload, aborts=aborts))


@given(data=st.data())
def test_a_waiting_request_may_be_cancelled(trial: Trial, data: st.DataObject) -> None:
    vocab_size = trial.subject.vocab_size
    runner, waiter, next_one = (
        Request(name, data.draw(prompts(vocab_size, st.integers(1, 12))), 5)
        for name in ("runner", "waiter", "next")
    )
    step = data.draw(st.integers(1, 4), label="before step")
    config = EngineConfig(max_num_seqs=1)
    workload = Workload((runner, waiter, next_one), config, (0, 0, 0), (("waiter", step),))
    check_cancelled(trial, workload)


@pytest.mark.needs("chunked_prefill")
@given(data=st.data())
def test_a_half_prefilled_request_may_be_cancelled(trial: Trial, data: st.DataObject) -> None:
    vocab_size = trial.subject.vocab_size
    long = Request("long", data.draw(prompts(vocab_size, st.integers(20, 36))), 4)
    short = Request("short", data.draw(prompts(vocab_size, st.integers(1, 6))), 6)
    step = data.draw(st.integers(1, 4), label="before step")  # of at least five chunks
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=4, block_size=4)
    check_cancelled(trial, Workload((long, short), config, (0, 0), (("long", step),)))


@pytest.mark.needs("preemption")
@given(data=st.data())
def test_a_request_may_be_cancelled_while_others_are_preempted(
    trial: Trial, data: st.DataObject
) -> None:
    """Two sequences outgrow the pool; the younger is preempted at step 4 or 5, and either may go."""
    vocab_size = trial.subject.vocab_size
    old, young, third = (
        Request(name, data.draw(prompts(vocab_size, st.just(8))), 10)
        for name in ("old", "young", "third")
    )
    victim = data.draw(st.sampled_from(["old", "young", "third"]), label="cancelled")
    step = data.draw(st.integers(6, 9), label="before step")
    config = EngineConfig(max_num_seqs=2, block_size=4, num_blocks=6)
    workload = Workload((old, young, third), config, (0, 0, 0), ((victim, step),))
    check_cancelled(trial, workload, must_preempt=True)


def test_finished_and_unknown_ids_are_ignored(trial: Trial) -> None:
    requests = (Request("quick", (1, 2, 3), 1), Request("slow", (4, 5), 8))
    aborts = (("quick", 4), ("nobody", 2), ("slow-but-not-quite", 3))
    check_cancelled(trial, Workload(requests, EngineConfig(), (0, 0), aborts))


def test_an_id_may_be_used_again_after_it_was_cancelled(trial: Trial) -> None:
    config = EngineConfig(max_num_seqs=1, block_size=4)
    with trial.engine(config) as engine:
        first = Workload((Request("same", (9,) * 9, 8),), config, (0,), (("same", 3),))
        trial.run(first, engine)
        with blame(Promise.P13, "with the id of a cancelled request"):
            trial.check(Workload((Request("same", (3, 1), 3),), config, arrivals=(0,)), engine)


def test_an_id_may_be_used_again_after_it_was_cancelled_while_waiting(trial: Trial) -> None:
    config = EngineConfig(max_num_seqs=1, block_size=4)
    runner, waiter = Request("runner", (9,) * 9, 8), Request("same", (5, 1), 4)
    with trial.engine(config) as engine:
        trial.run(Workload((runner, waiter), config, (0, 0), (("same", 2),)), engine)
        with blame(Promise.P13, "with the id of a cancelled request"):
            trial.check(Workload((Request("same", (3, 1), 3),), config, arrivals=(0,)), engine)
