"""P22: each token lies in its own request's grammar at that step, and is the best that does.

Which tokens a grammar allows is computed by the suite's own automaton, and the best of them in float64.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import Request
from batchproof.checks.happened import ACCEPTED, HITS, PREEMPTED, REJECTED
from batchproof.generators.strategies import crowded, workloads
from batchproof.generators.structuring import (
    ENDS,
    MALFORMED,
    drafted,
    lasting,
    same_prompts,
    structured,
    to_the_end,
)
from batchproof.run.cancelling import check_run_with_aborts
from batchproof.run.trial import Trial

pytestmark = [pytest.mark.promise(id="P22"), pytest.mark.needs("structured")]


@pytest.mark.three_models
@given(data=st.data())
def test_each_token_is_the_best_of_its_own_grammar(trial: Trial, data: st.DataObject) -> None:
    """Mixes requests of all kinds of grammars with plain ones."""
    drawn = data.draw(workloads(trial, min_requests=2, first_cap=8))
    trial.check(data.draw(structured(trial, drawn)))


@pytest.mark.needs("stepping")
@pytest.mark.one_model
@given(data=st.data())
def test_requests_come_and_go_under_their_own_grammars(trial: Trial, data: st.DataObject) -> None:
    """Aborts one of them, so that the others move."""
    drawn = data.draw(workloads(trial, min_requests=3, with_arrivals=True, first_cap=8))
    workload = data.draw(structured(trial, drawn))
    gone = data.draw(st.integers(0, len(workload.requests) - 1), label="aborted")
    step = workload.arrivals[gone] + data.draw(st.integers(0, 8), label="steps until then")
    with trial.engine(workload.config) as engine:
        trial.check(workload, engine)
        aborts = ((workload.requests[gone].request_id, step),)
        check_run_with_aborts(trial, replace(workload, aborts=aborts), engine)


@pytest.mark.shows("preemption")
@pytest.mark.one_model
@given(data=st.data())
def test_a_preempted_request_goes_on_in_its_grammar(trial: Trial, data: st.DataObject) -> None:
    drawn = data.draw(crowded(trial))
    longest = max(each.max_new_tokens for each in drawn.requests)
    trial.check_calls([data.draw(structured(trial, drawn, lasting(longest)))], PREEMPTED)


@pytest.mark.needs("speculation")
@pytest.mark.on_model("llama-hash")  # whose tokens differ, so that a grammar's state decides
@given(data=st.data())
def test_drafts_are_kept_as_far_as_the_grammar_allows_them(trial: Trial, data: st.DataObject) -> None:
    """No draft knows of a grammar: that of a rejected one goes back to where it was."""
    workload = data.draw(drafted(trial, data.draw(workloads(trial, first_cap=8))))
    trial.check_calls([workload], ACCEPTED, REJECTED)


@pytest.mark.shows("prefix_caching")
@pytest.mark.one_model
@given(data=st.data())
def test_one_prompt_is_answered_under_different_grammars(trial: Trial, data: st.DataObject) -> None:
    trial.check_calls(data.draw(same_prompts(trial)), HITS)


@pytest.mark.three_models
def test_a_text_ends_with_an_eos_or_at_the_cap(trial: Trial) -> None:
    trial.check(to_the_end(trial))


@pytest.mark.one_model
@pytest.mark.parametrize("kind", [*MALFORMED, "no EOS"])
def test_a_grammar_that_cannot_be_followed_is_refused_alone(trial: Trial, kind: str) -> None:
    good = to_the_end(trial)
    grammar = MALFORMED.get(kind, good.requests[0].grammar)
    known = trial.grammars.ends or frozenset(ENDS[:1])
    eos = frozenset({trial.subject.vocab_size}) if kind == "no EOS" else known
    bad = Request("bad", (5, 6), 4, eos, grammar=grammar)
    mixed = (*good.requests[:4], bad, *good.requests[4:])
    trial.check_answers(good.with_requests(mixed), bad=(4,))
