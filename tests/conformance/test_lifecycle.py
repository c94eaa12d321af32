"""P23: what is done with an engine besides requests leaves nothing of before where it must not.

New weights turn the model into another hash, in all layers or in the vocabulary alone. So a layer that
keeps its weights, and a key that old ones have computed, show in the tokens. A prefix that is found
although it was to be forgotten shows in the trace.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request
from batchproof.checks.environment import require_same, world_of
from batchproof.checks.happened import HITS, happened_in, has_request_across
from batchproof.generators.interrupting import (
    UPDATES,
    cleared_meanwhile,
    interruptible,
    room_for_adapters,
    same_prompts,
    standing_still,
    updated,
)
from batchproof.generators.strategies import crowded, text_tokens
from batchproof.models.embedded import VARIANTS_MODEL
from batchproof.requirements.promises import Promise
from batchproof.run.cancelling import check_run_with_aborts
from batchproof.run.relations import blame
from batchproof.run.trial import Trial
from batchproof.workload.workloads import CLEAR, PAUSE, RESUME, SLEEP, WAKE, Interruption, Workload

pytestmark = [pytest.mark.promise(id="P23"), pytest.mark.on_model(VARIANTS_MODEL)]

each_way_to_stand = pytest.mark.parametrize(
    ("begin", "end"),
    [
        pytest.param(SLEEP, WAKE, marks=pytest.mark.needs("sleeping"), id="sleep"),
        pytest.param(PAUSE, RESUME, marks=pytest.mark.needs("pausing"), id="pause"),
    ],
)


def check_across(trial: Trial, workload: Workload, across: str) -> None:
    """Checks a workload, and that a request ran before and behind its first interruption."""
    with trial.engine(workload.config) as engine, blame(Promise.P23, f"across {across}"):
        outcome = trial.check(workload, engine)
        done = workload.interruptions[0].step
        shown = has_request_across(trial.trace_of(engine), outcome, done)
        trial.must_show(f"request across {across}", shown)


@each_way_to_stand
@given(data=st.data())
def test_an_engine_may_stand_still_between_two_calls(
    trial: Trial, data: st.DataObject, begin: str, end: str
) -> None:
    stood = (Interruption(0, begin), Interruption(0, end))
    calls = data.draw(same_prompts(trial, ()))
    with blame(Promise.P23, f"behind {begin} and {end}"):
        trial.check_calls([calls[0], *(replace(each, interruptions=stood) for each in calls)])


@pytest.mark.needs("interruption")
@each_way_to_stand
@given(data=st.data())
def test_requests_go_on_where_the_engine_stood_still(
    trial: Trial, data: st.DataObject, begin: str, end: str
) -> None:
    """Requests come meanwhile as well."""
    workload = data.draw(interruptible(trial))
    stood = data.draw(standing_still(begin, end))
    check_across(trial, replace(workload, interruptions=stood), begin)


@pytest.mark.needs("interruption")
@each_way_to_stand
@given(data=st.data())
def test_a_request_may_be_cancelled_while_the_engine_stands_still(
    trial: Trial, data: st.DataObject, begin: str, end: str
) -> None:
    """It runs, waits, or has just come. Its slot and its blocks are free for those behind it."""
    size = trial.block_sizes[-1]
    victim, when = data.draw(st.integers(0, 3), label="victim"), data.draw(st.integers(2, 3))
    texts = (text_tokens(text, trial.subject.vocab_size) for text in range(5))
    wanted = tuple(Request(f"r{i}", text[: size + i], 6) for i, text in enumerate(texts))
    room = -(-(size + 5 + 6) // size) * 2 if Capability.PREEMPTION in trial.capabilities else None
    config = EngineConfig(max_num_seqs=2, block_size=size, num_blocks=room)
    stood = (Interruption(2, begin), Interruption(4, end))
    workload = Workload(wanted, config, (0, 0, 0, 2, 3), ((f"r{victim}", when),), interruptions=stood)
    with trial.engine(config) as engine, blame(Promise.P23, f"behind {begin}"):
        check_run_with_aborts(trial, workload, engine)


@pytest.mark.needs("cache_clearing")
@pytest.mark.shows("prefix_caching")
@given(data=st.data())
def test_nothing_is_found_in_a_cleared_cache(trial: Trial, data: st.DataObject) -> None:
    calls = data.draw(same_prompts(trial, [Interruption(0, CLEAR)] * 2))
    with blame(Promise.P23, "with a cleared cache"):
        trial.check_calls(calls, HITS)


@pytest.mark.needs("cache_clearing", "interruption")
@pytest.mark.shows("prefix_caching")
@given(data=st.data())
def test_a_cache_may_be_cleared_while_requests_run(trial: Trial, data: st.DataObject) -> None:
    check_across(trial, data.draw(cleared_meanwhile(trial)), "a clearing")


@pytest.mark.needs("weight_updates")
@given(data=st.data())
def test_new_weights_answer_prompts_that_were_served_before(trial: Trial, data: st.DataObject) -> None:
    """In turns whole and in part, and the first weights again in the end."""
    count = trial.subject.num_weights - 1
    numbers = data.draw(st.lists(st.integers(1, count), min_size=2, max_size=3), label="weights")
    done = [Interruption(0, UPDATES[i % 2], number) for i, number in enumerate([*numbers, 0])]
    before = world_of(trial.subject.model)
    room = data.draw(room_for_adapters(trial), label="max_loras")
    calls = data.draw(same_prompts(trial, done, room))
    with trial.engine(calls[0].config) as engine, blame(Promise.P23, "with new weights"):
        for call in calls:
            trial.check(call, engine)
        with trial.reporting(calls[-1]):
            require_same(before, world_of(trial.subject.model), "while weights were replaced")
        if Capability.PREFIX_CACHING in trial.capabilities:
            trial.must_show(HITS, happened_in(trial.trace_of(engine))[HITS] > 0)


@pytest.mark.needs("weight_updates", "interruption")
@given(data=st.data())
def test_requests_go_on_under_new_weights(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(interruptible(trial))
    check_across(trial, data.draw(updated(trial.oracle, workload)), "new weights")


@pytest.mark.needs("weight_updates", "interruption", "preemption")
@given(data=st.data())
def test_new_weights_come_while_the_pool_is_full(trial: Trial, data: st.DataObject) -> None:
    drawn = data.draw(crowded(trial)).with_config(return_logits=False)
    workload = replace(drawn, arrivals=(0,) * len(drawn.requests))
    check_across(trial, data.draw(updated(trial.oracle, workload)), "new weights in a full pool")
