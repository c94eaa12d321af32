"""P9, P10 and P11, from the trace: who runs when, that it ends, and that the blocks add up.

`trial.check` judges every trace by the rules of `batchproof.checks.scheduling`: here workloads make
it hard.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import EngineConfig
from batchproof.checks.happened import PREEMPTED, has_mixed_step
from batchproof.generators.strategies import asking, crowded, workloads
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = pytest.mark.one_model


@pytest.mark.promise(id="P9")
@pytest.mark.needs("tracing")
@given(data=st.data())
def test_slots_and_token_budget_are_never_exceeded(trial: Trial, data: st.DataObject) -> None:
    trial.check(data.draw(workloads(trial, min_requests=3)))


@pytest.mark.promise(id="P9")
@pytest.mark.needs("scheduling", "tracing", "stepping")
@given(data=st.data())
def test_freed_slots_are_filled_at_once_and_decodes_never_wait(
    trial: Trial, data: st.DataObject
) -> None:
    is_staggered = data.draw(st.booleans(), label="staggered")
    trial.check(data.draw(workloads(trial, min_requests=3, with_arrivals=is_staggered)))


@pytest.mark.promise(id="P9")
@pytest.mark.needs("scheduling", "tracing", "stepping")
@given(data=st.data())
def test_a_prefill_rides_with_the_decodes_of_others(trial: Trial, data: st.DataObject) -> None:
    """Lets prompts arrive while a long answer runs: some step must hold both, and none may wait."""
    newcomers = data.draw(st.integers(1, 4), label="newcomers")
    wanted = data.draw(asking(trial.oracle, "runner", [12], st.integers(1, 9)))
    wanted += data.draw(asking(trial.oracle, "new", [2] * newcomers, st.integers(2, 9)))
    arrivals = (0, *(2 + 2 * i for i in range(newcomers)))
    trace = trial.check_calls([Workload(tuple(wanted), EngineConfig(max_num_seqs=3), arrivals)])
    trial.must_show("prefill that shares a step with a decode", has_mixed_step(trace))


@pytest.mark.promise(id="P10")
@given(data=st.data())
def test_every_run_ends_and_every_request_finishes_once(trial: Trial, data: st.DataObject) -> None:
    trial.check(data.draw(workloads(trial, min_requests=2)))


@pytest.mark.promise(id="P10")
@pytest.mark.needs("stepping")
@given(data=st.data())
def test_stepping_ends_within_the_bound(trial: Trial, data: st.DataObject) -> None:
    trial.check(data.draw(workloads(trial, min_requests=2, with_arrivals=True)))


@pytest.mark.promise(id="P11")
@pytest.mark.needs("preemption", "tracing")
@given(data=st.data())
def test_free_and_used_blocks_add_up_under_preemption(trial: Trial, data: st.DataObject) -> None:
    trial.check_calls([data.draw(crowded(trial))], PREEMPTED)


@pytest.mark.promise(id="P11")
@pytest.mark.needs("preemption", "tracing")
@given(data=st.data())
def test_blocks_add_up_when_several_finish_in_one_step(trial: Trial, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 4), label="finish together")
    cap = data.draw(st.integers(1, 5), label="max_new_tokens")
    wanted = data.draw(asking(trial.oracle, "r", [*[cap] * count, cap + 3], st.integers(1, 12)))
    config = EngineConfig(max_num_seqs=count + 1, block_size=4, num_blocks=6 * count)
    trial.check(Workload(tuple(wanted), config))


@pytest.mark.promise(id="P9")
@pytest.mark.needs("preemption", "scheduling", "tracing")
@given(data=st.data())
def test_a_preempted_request_keeps_its_place_in_the_queue(trial: Trial, data: st.DataObject) -> None:
    """Lets others wait behind it, which must not overtake."""
    full = data.draw(crowded(trial))
    behind = data.draw(asking(trial.oracle, "behind", [2, 2], st.integers(1, 4)))
    trial.check_calls([full.with_requests([*full.requests, *behind])], PREEMPTED)
