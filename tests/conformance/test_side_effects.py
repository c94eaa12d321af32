"""P15: weights, config, RNG state, global settings and the caller's requests are as before."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchproof.api import EngineConfig, Request
from batchproof.checks.broken import broken
from batchproof.checks.environment import require_same, world_of
from batchproof.findings.finding import Rule
from batchproof.generators.covering import calls_of, covering
from batchproof.generators.strategies import requests, workloads
from batchproof.run.meeting import Meetings
from batchproof.run.serving import assembled
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = pytest.mark.promise(id="P15")


@pytest.mark.one_model
@given(data=st.data())
def test_serving_leaves_the_world_as_it_was(trial: Trial, data: st.DataObject) -> None:
    """Lets an engine change settings while it works; after each call all must be restored."""
    check_world(trial, data.draw(workloads(trial)))


@pytest.mark.one_model
def test_what_befalls_a_request_leaves_the_world_as_it_was(trial: Trial) -> None:
    """Preempts, cancels, feeds in chunks and shares prefixes, as far as the engine can."""
    meetings = Meetings(trial, seed=0)
    design = covering(meetings.choices, seed=0, excluded=meetings.excluded)
    for number, values in enumerate(design[: settings().max_examples]):
        check_world(trial, calls_of(values, trial, number, trial.block_sizes)[0])


def check_world(trial: Trial, workload: Workload) -> None:
    """Compares the world before with those after `generate` and after `close`."""
    asked = deepcopy(workload.requests)
    torch.rand(1)  # so that an engine that seeds the generator cannot hit its state by luck
    before = world_of(trial.subject.model)
    with trial.engine(workload.config) as engine:
        outcome = trial.run(workload, engine)
        with trial.reporting(workload):
            require_same(before, world_of(trial.subject.model), "during generate")
    with trial.reporting(workload):
        require_same(before, world_of(trial.subject.model), "when the engine was closed")
        if workload.requests != asked:
            raise broken(Rule.CALLERS_REQUESTS)
        cancelled = dict(workload.aborts)
        kept = [each for each in workload.requests if each.request_id not in cancelled]
        by_id = {each.request_id: each for each in outcome.completions}
        answers = [by_id[each.request_id] for each in kept]
        if not any(each.is_update for each in workload.interruptions):  # whose answers have two parts
            trial.judge(kept, answers, adapters=workload.adapters)


@pytest.mark.one_model
@given(data=st.data())
def test_two_engines_live_side_by_side(trial: Trial, data: st.DataObject) -> None:
    """Calls in turn two engines with different limits, the same model and the same ids."""
    first_config, second_config = (
        EngineConfig(max_num_seqs=1),
        EngineConfig(max_num_seqs=3, block_size=4),
    )
    with trial.engine(first_config) as first, trial.engine(second_config) as second:
        for engine, config in ((first, first_config), (second, second_config), (first, first_config)):
            drawn = data.draw(requests(trial.oracle, max_size=4))
            trial.check(Workload(drawn, config), engine)


@pytest.mark.one_model
@pytest.mark.needs("stepping")
def test_two_engines_may_be_stepped_in_turn(trial: Trial) -> None:
    workload = Workload((Request("a", (1, 2, 3), 6), Request("b", (4, 5), 4)))
    other = Workload((Request("a", (9, 8, 7, 6), 5), Request("b", (3,), 6)))
    with trial.engine(workload.config) as first, trial.engine(other.config) as second:
        pairs = ((first, workload), (second, other))
        events: dict[int, list[Any]] = {0: [], 1: []}
        for engine, mine in pairs:
            for request in mine.requests:
                engine.add(request)
        for _ in range(workload.step_bound):
            for index, (engine, _) in enumerate(pairs):
                events[index] += engine.step()
        for index, (_, mine) in enumerate(pairs):
            with trial.reporting(mine):
                trial.judge(mine.requests, assembled(mine, events[index]))
