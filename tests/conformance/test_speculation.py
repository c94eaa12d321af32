"""P17: speculative decoding answers as the model alone, to the token, whatever the draft proposes.

The drafts are made for the purpose: where they are right is known.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import Capability, FinishReason
from batchproof.checks.happened import (
    has_acceptance,
    has_preemption,
    has_prefix_hit,
    has_rejection,
)
from batchproof.generators.choosing import mixed_workloads
from batchproof.generators.crossing import Feature, crossed, features_of, shared_prefixes
from batchproof.generators.speculating import (
    LEAST_CAP,
    ending_on_a_draft,
    foretold,
    one_alone,
    speculated,
    unevenly_accepted,
)
from batchproof.generators.strategies import crowded, workloads
from batchproof.run.cancelling import check_run_with_aborts
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = [pytest.mark.promise(id="P17"), pytest.mark.needs("speculation")]


@pytest.mark.on_model("gpt2-hash", "llama-hash")
@given(data=st.data())
def test_rows_accept_drafts_of_their_own(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(unevenly_accepted(trial.oracle, trial.has_logits))
    with trial.engine(workload.config) as engine:
        trial.check(workload, engine)
        trace = trial.trace_of(engine)
        trial.must_show("accepted draft", has_acceptance(trace))
        trial.must_show("rejected draft", has_rejection(trace))


@pytest.mark.three_models
@given(data=st.data())
def test_drafts_change_no_answer_in_any_batch(trial: Trial, data: st.DataObject) -> None:
    """Lets prompts be fed in chunks, sequences wait for a slot, and pools run full."""
    drawn = data.draw(workloads(trial.oracle, trial.capabilities, min_requests=3))
    trial.check(data.draw(speculated(trial.oracle, drawn)))


@pytest.mark.one_model
@pytest.mark.also_on("llama-twins")
@given(data=st.data())
def test_a_draft_that_is_never_right_changes_no_answer(trial: Trial, data: st.DataObject) -> None:
    """Lets the draft propose EOS ids where the model goes on; and, on a model whose tokens have twins
    that are nearly as good, these."""
    drawn = workloads(trial.oracle, trial.capabilities, min_requests=2, first_cap=LEAST_CAP)
    workload = data.draw(ending_on_a_draft(trial.oracle, data.draw(drawn)))
    with trial.engine(workload.config) as engine:
        trial.check(workload, engine)
        trial.check(one_alone(trial.oracle, workload, is_right=False), engine)
        trial.must_show("rejected draft", has_rejection(trial.trace_of(engine)))


@pytest.mark.one_model
@given(data=st.data())
def test_an_eos_or_the_cap_ends_a_run_of_right_drafts(trial: Trial, data: st.DataObject) -> None:
    drawn = workloads(trial.oracle, trial.capabilities, min_requests=3, first_cap=LEAST_CAP)
    workload = data.draw(speculated(trial.oracle, data.draw(drawn), 1.0))
    with trial.engine(workload.config) as engine:
        trial.check(workload, engine)
        trial.check(one_alone(trial.oracle, workload, is_right=True), engine)
        trial.must_show("accepted draft", has_acceptance(trial.trace_of(engine)))


@pytest.mark.needs("stepping")
@pytest.mark.one_model
@given(data=st.data())
def test_each_token_of_a_step_has_its_event(trial: Trial, data: st.DataObject) -> None:
    drawn = workloads(trial.oracle, trial.capabilities, min_requests=3, with_arrivals=True)
    trial.check(data.draw(speculated(trial.oracle, data.draw(drawn))))


@pytest.mark.shows("preemption")
@pytest.mark.one_model
@given(data=st.data())
def test_a_preempted_request_keeps_no_rejected_draft(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(speculated(trial.oracle, data.draw(crowded(trial.oracle, trial.has_logits))))
    with trial.engine(workload.config) as engine:
        trial.check(workload, engine)
        trace = trial.trace_of(engine)
        trial.must_show("preemption", has_preemption(trace))
        trial.must_show("rejected draft", has_rejection(trace))


@pytest.mark.shows("prefix_caching")
@pytest.mark.one_model
@given(data=st.data())
def test_no_rejected_draft_is_found_in_the_prefix_cache(trial: Trial, data: st.DataObject) -> None:
    calls = data.draw(shared_prefixes(trial.oracle, trial.capabilities, LEAST_CAP))
    first = data.draw(speculated(trial.oracle, calls[0]))
    alone = one_alone(trial.oracle, first, is_right=False)
    with trial.engine(first.config) as engine:
        for call in (*calls, alone):
            trial.check(Workload(call.requests, first.config), engine)
        trace = trial.trace_of(engine)
        trial.must_show("prefix hit", has_prefix_hit(trace))
        trial.must_show("rejected draft", has_rejection(trace))


@pytest.mark.needs("stepping")
@pytest.mark.one_model
@given(data=st.data())
def test_an_abort_amid_drafts_changes_no_one_elses_tokens(trial: Trial, data: st.DataObject) -> None:
    features = {*features_of(trial.capabilities)} - {Feature.CHUNKS} | {Feature.ABORTS}
    drawn = data.draw(crossed(trial.oracle, features, False, growth=4))
    # With more drafts a step the answers could end before the one to abort is aborted.
    workload = data.draw(speculated(trial.oracle, drawn, 1.0, most_drafts=3))
    with trial.engine(workload.config) as engine:
        outcome = check_run_with_aborts(trial, workload, engine)
        reasons = [each.finish_reason for each in outcome.completions]
        trial.must_show("abort", FinishReason.ABORTED in reasons)
        trial.must_show("accepted draft", has_acceptance(trial.trace_of(engine)))


@pytest.mark.needs("logit_processing")
@pytest.mark.one_model
@given(data=st.data())
def test_parameters_beside_drafts_stay_with_their_request(trial: Trial, data: st.DataObject) -> None:
    are_drawn = Capability.SAMPLING in trial.capabilities and data.draw(st.booleans(), label="drawn")
    drawn = mixed_workloads(trial.oracle, *trial.offer, are_drawn=are_drawn)
    trial.check(data.draw(speculated(trial.oracle, data.draw(drawn))))


@pytest.mark.on_model("llama-hash")
@given(data=st.data())
def test_drafts_from_n_grams_change_no_answer(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(foretold(trial.oracle))
    with trial.engine(workload.config) as engine:
        trial.check(workload, engine)
        trace = trial.trace_of(engine)
        trial.must_show("accepted draft", has_acceptance(trace))
        trial.must_show("rejected draft", has_rejection(trace))
