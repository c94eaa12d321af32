"""P13: an abort in any state frees everything and changes no token of other requests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request
from batchproof.checks.happened import has_preemption
from batchproof.generators.strategies import prompts, workloads
from batchproof.promises import Promise
from batchproof.run.cancelling import check_run_with_aborts
from batchproof.run.relations import blame
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = [
    pytest.mark.promise(id="P13"),
    pytest.mark.needs("stepping"),
    pytest.mark.one_model,
]


def check_cancelled(trial: Trial, workload: Workload, must_preempt: bool = False) -> None:
    with trial.engine(workload.config) as engine:
        check_run_with_aborts(trial, workload, engine)
        if must_preempt and Capability.TRACING in trial.capabilities:
            with trial.reporting(workload):
                trial.must_show("preemption", has_preemption(trial.trace_of(engine)))


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


def test_an_id_may_be_used_again_after_it_finished_and_was_cancelled(trial: Trial) -> None:
    """An abort that comes too late is forgotten."""
    config = EngineConfig(max_num_seqs=2, block_size=4)
    quick, slow = Request("same", (1, 2, 3), 1), Request("slow", (4, 5), 8)
    with trial.engine(config) as engine:
        trial.run(Workload((quick, slow), config, (0, 0), (("same", 4),)), engine)
        with blame(Promise.P13, "with an id that was cancelled after its end"):
            trial.check(Workload((Request("same", (3, 1), 3),), config, arrivals=(0,)), engine)
