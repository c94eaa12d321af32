"""Preemption, chunks, shared prefixes and aborts, each right by itself, in pairs and triples.

An example counts only if all of its features have happened in it, as far as a trace tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import Capability, Engine, FinishReason
from batchproof.checks.happened import has_chunk, has_preemption, has_prefix_hit
from batchproof.generators.crossing import CAPABILITIES, Feature, crossed, features_of
from batchproof.generators.strategies import fewer_examples
from batchproof.requirements.promises import Promise
from batchproof.run.cancelling import check_run_with_aborts
from batchproof.run.relations import blame
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = pytest.mark.one_model

SEEN = {
    Feature.PREEMPTION: has_preemption,
    Feature.CHUNKS: has_chunk,
    Feature.PREFIXES: has_prefix_hit,
}

NEEDED = (Feature.CHUNKS, Feature.ABORTS)  # an engine without chunks may refuse a long prompt


def crossings(sizes: Iterable[int], with_aborts: bool) -> list[object]:
    """Returns sets of so many features, each with the capabilities it needs or, if it has a trace,
    shows."""
    return [
        pytest.param(
            features,
            id="-".join(features),
            marks=[
                pytest.mark.needs(*(CAPABILITIES[each].value for each in features if each in NEEDED)),
                pytest.mark.shows(
                    *(CAPABILITIES[each].value for each in features if each not in NEEDED)
                ),
            ],
        )
        for size in sizes
        for features in combinations(Feature, size)
        if (Feature.ABORTS in features) == with_aborts
    ]


@pytest.mark.promise(id="P1")
@pytest.mark.parametrize("features", crossings((2, 3), with_aborts=False))
@fewer_examples(2)
@given(data=st.data())
def test_features_that_meet_change_no_token(
    trial: Trial, features: tuple[Feature, ...], data: st.DataObject
) -> None:
    """Runs twice on one engine, so that the second run meets what the first left behind."""
    workload = data.draw(crossed(trial.oracle, features, trial.has_logits))
    with trial.engine(workload.config) as engine:
        for _ in range(2):
            trial.check(workload, engine)
        trace = trial.trace_of(engine)
        trial.must_show(" and ".join(features), all(SEEN[each](trace) for each in features))


@pytest.mark.promise(id="P13")
@pytest.mark.parametrize("features", crossings((2, 3, 4), with_aborts=True))
@fewer_examples(2)
@given(data=st.data())
def test_an_abort_amid_other_features_changes_no_one_elses_tokens(
    trial: Trial, features: tuple[Feature, ...], data: st.DataObject
) -> None:
    """Runs the same requests again afterwards, without an abort."""
    workload = data.draw(crossed(trial.oracle, features, trial.has_logits))
    with trial.engine(workload.config) as engine:
        outcome = check_run_with_aborts(trial, workload, engine)
        with blame(Promise.P13, "after a request was cancelled"):
            trial.check(replace(workload, aborts=()), engine)
        trace = trial.trace_of(engine)
        reasons = [each.finish_reason for each in outcome.completions]
        have_met = FinishReason.ABORTED in reasons and all(
            SEEN[each](trace) for each in features if each in SEEN
        )
        trial.must_show(" and ".join(features), have_met)


@pytest.mark.promise(id="P8")
@pytest.mark.shows("preemption")
@pytest.mark.long_model
@fewer_examples(2)
@given(data=st.data())
def test_features_that_meet_in_large_blocks_change_no_token(trial: Trial, data: st.DataObject) -> None:
    """Combines what the engine can in blocks of 32 tokens: an engine may have no smaller ones, and
    round a small pool up to a single block. Requests arrive while others are fed."""
    can_step = Capability.STEPPING in trial.capabilities
    features = data.draw(st.sets(st.sampled_from(features_of(trial.capabilities)), min_size=1))
    shape = {"block_sizes": (32,), "growth": 2, "latest": 8 * can_step}
    workload = data.draw(crossed(trial.oracle, features, False, **shape))
    with trial.engine(workload.config) as engine:
        run = check_run_with_aborts if workload.aborts else _checked
        with blame(Promise.P8, "amid others in large blocks"):
            run(trial, workload, engine)
            trial.check(replace(workload, aborts=()), engine)
        trace = trial.trace_of(engine)
        for each in features & SEEN.keys():
            trial.must_show(each.value, SEEN[each](trace))


def _checked(trial: Trial, workload: Workload, engine: Engine) -> None:
    trial.check(workload, engine)
