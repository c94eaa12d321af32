"""P17: speculative decoding answers as the model alone, to the token, whatever the draft proposes.

The drafts are made for the purpose: where they are right is known.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.checks.happened import (
    has_acceptance,
    has_rejection,
)
from batchproof.generators.speculating import (
    LEAST_CAP,
    ending_on_a_draft,
    foretold,
    one_alone,
    speculated,
    unevenly_accepted,
)
from batchproof.generators.strategies import workloads
from batchproof.run.trial import Trial

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


@pytest.mark.on_model("llama-hash")
@given(data=st.data())
def test_drafts_from_n_grams_change_no_answer(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(foretold(trial.oracle))
    with trial.engine(workload.config) as engine:
        trial.check(workload, engine)
        trace = trial.trace_of(engine)
        trial.must_show("accepted draft", has_acceptance(trace))
        trial.must_show("rejected draft", has_rejection(trace))
