"""P13: an abort in any state frees everything and changes no token of other requests."""

from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import EngineConfig, Request
from batchproof.checks.broken import require
from batchproof.checks.happened import PREEMPTED, happened_in
from batchproof.generators.strategies import text_tokens, workloads
from batchproof.models.embedded import STATE_MODEL
from batchproof.requirements.promises import Promise
from batchproof.run.cancelling import check_run_with_aborts, late_token_findings
from batchproof.run.relations import blame
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Outcome, Workload, assemble

pytestmark = [pytest.mark.promise(id="P13"), pytest.mark.needs("stepping"), pytest.mark.one_model]


def check_cancelled(trial: Trial, workload: Workload, must_preempt: bool = False) -> None:
    with trial.engine(workload.config) as engine:
        check_run_with_aborts(trial, workload, engine)
        if must_preempt:
            trial.must_show(PREEMPTED, happened_in(trial.trace_of(engine))[PREEMPTED] > 0)


@pytest.mark.also_on(STATE_MODEL)
@given(data=st.data())
def test_a_request_may_be_cancelled_at_any_step(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(workloads(trial, min_requests=2, with_arrivals=True))
    # Ids that begin alike: an abort means one of them.
    ids = ["r" * (index + 1) for index in range(len(workload.requests))]
    renamed = zip(workload.requests, ids, strict=True)
    workload = workload.with_requests([replace(each, request_id=name) for each, name in renamed])
    chosen = data.draw(st.sets(st.sampled_from(ids), min_size=1, max_size=3), label="cancelled")
    arrived = dict(zip(ids, workload.arrivals, strict=True))
    after = st.integers(0, 12)  # steps from its arrival to the abort
    aborts = tuple(
        (each, arrived[each] + data.draw(after, label="cancelled after")) for each in sorted(chosen)
    )
    check_cancelled(trial, replace(workload, aborts=aborts))


@pytest.mark.needs("preemption")
def test_a_preempted_request_may_be_cancelled_while_it_waits(trial: Trial) -> None:
    """Cancels each of those that may be preempted before each step of a pool that runs full: while each
    is in its third block, or in its second where blocks behind a window may be given back."""
    size, num = trial.block_sizes[-1], 2 if trial.subject.reach is None else 1
    config = EngineConfig(block_size=size, num_blocks=3 * num)
    texts = (text_tokens(text, trial.subject.vocab_size)[: num * size] for text in range(3))
    wanted = tuple(Request(f"r{i}", text, num * size + 2) for i, text in enumerate(texts))
    last = (num + 1) * size
    for name, step in product(("r1", "r2"), range(2, last, size // 4)):
        check_cancelled(trial, Workload(wanted, config, (0, 0, 0), ((name, step),)), must_preempt=True)


def test_finished_and_unknown_ids_are_ignored(trial: Trial) -> None:
    requests = (Request("quick", (1, 2, 3), 1), Request("slow", (4, 5), 8))
    aborts = (("quick", 4), ("nobody", 2), ("slow-but-not-quite", 3), ("slo", 3), ("low", 3))
    check_cancelled(trial, Workload(requests, EngineConfig(), (0, 0), aborts))


@pytest.mark.parametrize("when", ["running", "waiting", "finished"])
def test_an_id_may_be_used_again_after_it_was_cancelled(trial: Trial, when: str) -> None:
    """Gives the id to a request without EOS ids, whose right answer holds those of the cancelled one.

    An abort that comes after the end of its request is forgotten.
    """
    newcomer = Request("same", (3, 1), 6)
    prompt, cap = {"running": ((9,) * 9, 8), "waiting": ((5, 1), 4), "finished": ((1, 2, 3), 1)}[when]
    theirs, own = (frozenset(trial.oracle.right_tokens(*each)) for each in (((3, 1), 6), (prompt, cap)))
    cancelled, other = Request("same", prompt, cap, theirs - own), Request("other", (4, 5), 8)
    wanted = {"running": (cancelled,), "waiting": (other, cancelled), "finished": (cancelled, other)}
    config = EngineConfig(max_num_seqs=1, block_size=4)
    with trial.engine(config) as engine:
        arrivals = (0,) * len(wanted[when])
        trial.run(Workload(wanted[when], config, arrivals, (("same", 3),)), engine)
        with blame(Promise.P13, f"with an id that was cancelled while {when}"):
            trial.check(Workload((newcomer,), config, arrivals=(0,)), engine)


def test_a_live_request_may_be_cancelled_after_its_id_was_refused(trial: Trial) -> None:
    """Adds the id of a live request once more, which is refused, and cancels the live one."""
    live, other = Request("same", (3, 1, 4), 8), Request("other", (1, 5), 5)
    workload = Workload((live, other))
    with trial.engine(workload.config) as engine, trial.reporting(workload):
        for request in workload.requests:
            engine.add(request)
        with suppress(ValueError):
            engine.add(Request("same", (9, 2), 4))
        engine.abort("same")
        steps = [engine.step() for _ in range(workload.step_bound)]
        events = [(number, event) for number, step in enumerate(steps) for event in step]
        answer = assemble("other", [event for _, event in events])
        late = late_token_findings(Outcome((answer,), tuple(events)), "same", 0)
        require(each.under(Promise.P13, "after its id was refused to another") for each in late)
        trial.judge([other], [answer])
