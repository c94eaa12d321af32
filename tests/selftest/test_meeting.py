"""The covering design of workloads: what meets, what is shown, and what a failure needs."""

from itertools import combinations

import pytest

from batchproof.api import Capability, RowRecord, StepRecord
from batchproof.decoding.sampling import SamplingParams
from batchproof.generators.covering import (
    EXCLUDED,
    Values,
    alone,
    choices_for,
    covering,
    meetings,
    without,
)
from batchproof.generators.dimensions import PLAIN
from batchproof.requirements.promises import Promise
from batchproof.run.failures import ConformanceFailure
from batchproof.run.meeting import Meetings, Served
from batchproof.run.registry import resolve_engine
from batchproof.run.trial import Trial
from batchproof.workload.workloads import DEFAULT_TIME_LIMIT_S
from tests.selftest.conftest import LaboratoryFor

EVERYTHING = choices_for(frozenset(Capability), frozenset(SamplingParams.__slots__))
LITTLE = choices_for(frozenset({Capability.STEPPING}), frozenset())


@pytest.mark.parametrize("choices", [EVERYTHING, LITTLE], ids=["every capability", "stepping alone"])
def test_every_pair_that_can_meet_is_in_the_design(choices: dict[str, list[str]]) -> None:
    rows = covering(choices, 0)
    held = {pair for row in rows for pair in combinations(sorted(row.items()), 2)}
    assert held == {*meetings(choices, 2)}
    assert not held & EXCLUDED
    assert len(rows) < 90


def test_a_meeting_by_itself_is_plain_in_all_else() -> None:
    for pair in meetings(EVERYTHING, 2):
        values = alone(pair)
        assert {*pair} <= {*values.items()}
        assert not EXCLUDED & {*combinations(sorted(values.items()), 2)}
        assert len([name for name in values if values[name] != PLAIN[name]]) <= 5


def test_a_dimension_is_left_out_only_if_the_others_can_meet_without_it() -> None:
    values: Values = {**PLAIN, "abort": "decode", "arrival": "late"}
    assert without(values, "arrival") is None
    assert without(values, "abort") == {**PLAIN, "arrival": "late"}


@pytest.mark.parametrize(
    ("num_before", "num_behind", "places"), [(0, 3, set()), (2, 1, set()), (1, 2, {1})]
)
def test_a_preemption_is_met_between_tokens_of_which_two_follow(
    num_before: int, num_behind: int, places: set[int]
) -> None:
    fed = StepRecord((RowRecord("r1", 4, 1, True),), (), (), (), ())
    gone = StepRecord((RowRecord("r0", 4, 1, True),), ("r1",), (), (), ("r1",))
    back = StepRecord((RowRecord("r1", 0, 5, False),), (), ("r1",), (), ())
    trace = [*[fed] * num_before, gone, back, *[fed] * num_behind]
    assert Served((), trace, None).interrupted() == places


def test_what_is_forgotten_after_a_preemption_is_met_and_the_features_are_named(
    laboratory_for: LaboratoryFor,
) -> None:
    lab = laboratory_for(DEFAULT_TIME_LIMIT_S)
    spec = resolve_engine("fault:a_preempted_answer_counts_as_prompt")
    trial = Trial(lab, spec, lab.oracle("gpt2-random"), Promise.P1)
    meetings = Meetings(trial, seed=0)
    meetings.restrict(adapters=(), interruption=(), ends=["least length"])
    with pytest.raises(ConformanceFailure) as caught:
        meetings.serve_design()
    appeared = caught.value.failure.finding.appeared
    assert appeared is not None
    assert {"pool=tight", "ends=least length"} <= {*appeared.removeprefix("where ").split(" meets ")}
