"""P17: speculative decoding answers as the model alone, to the token, whatever the draft proposes.

The drafts are made for the purpose: where they are right is known.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request, SamplingParams
from batchproof.checks.broken import require
from batchproof.checks.happened import ACCEPTED, HITS, REJECTED, happened_in
from batchproof.checks.trace import lost_drafts
from batchproof.generators.speculating import (
    LEAST_CAP,
    behind_rejected_drafts,
    ending_on_a_draft,
    foretold,
    one_alone,
    speculated,
)
from batchproof.generators.strategies import text_tokens, workloads
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = [pytest.mark.promise(id="P17"), pytest.mark.needs("speculation")]


@pytest.mark.one_model
@pytest.mark.shows("prefix_caching")
@given(data=st.data())
def test_no_rejected_draft_is_found_in_a_prefix_cache(trial: Trial, data: st.DataObject) -> None:
    first, behind = data.draw(behind_rejected_drafts(trial))
    with trial.engine(first.config) as engine:
        trial.check(first, engine)
        trial.must_show(REJECTED, happened_in(trial.trace_of(engine))[REJECTED] > 0)
        trial.check(behind, engine)
        trial.must_show(HITS, happened_in(trial.trace_of(engine))[HITS] > 0)


@pytest.mark.one_model
@pytest.mark.also_on("llama-twins")
@given(data=st.data())
def test_a_draft_that_is_never_right_changes_no_answer(trial: Trial, data: st.DataObject) -> None:
    """Lets the draft propose EOS ids where the model goes on; and, on a model whose tokens have twins
    that are nearly as good, these."""
    drawn = data.draw(workloads(trial, min_requests=2, first_cap=LEAST_CAP))
    workload = data.draw(ending_on_a_draft(trial.oracle, drawn))
    trial.check_calls([workload, one_alone(trial.oracle, workload, is_right=False)], REJECTED)


@pytest.mark.one_model
@given(data=st.data())
def test_an_eos_or_the_cap_ends_a_run_of_right_drafts(trial: Trial, data: st.DataObject) -> None:
    drawn = data.draw(workloads(trial, min_requests=3, first_cap=LEAST_CAP))
    workload = data.draw(speculated(drawn, 1.0))
    alone = one_alone(trial.oracle, workload, is_right=True)
    trace = trial.check_calls([workload, alone], ACCEPTED)
    # A single one that is lost may be a near-tie.
    if not happened_in(trace)[ACCEPTED] and Capability.EXACT_DRAFTS in trial.capabilities:
        with trial.reporting(workload):
            require(lost_drafts(trace))


@pytest.mark.needs("exact_drafts")
@pytest.mark.on_model("eagle-hash")
@given(data=st.data())
def test_every_right_draft_is_kept(trial: Trial, data: st.DataObject) -> None:
    """On a model with a draft head: a hidden state or a key of its own that is wrong changes no answer,
    and loses drafts."""
    drawn = data.draw(workloads(trial, min_requests=3, first_cap=LEAST_CAP))
    workload = data.draw(speculated(drawn, 1.0))
    trace = trial.check_calls([workload], ACCEPTED)
    with trial.reporting(workload):
        require(lost_drafts(trace))


@pytest.mark.on_model("llama-hash")
@given(data=st.data())
def test_drafts_from_n_grams_change_no_answer(trial: Trial, data: st.DataObject) -> None:
    trial.check_calls([data.draw(foretold(trial.oracle))], ACCEPTED, REJECTED)


@pytest.mark.promise(id="P19")
@pytest.mark.needs("logit_processing")
@pytest.mark.quick_models
def test_penalties_count_the_drafts_of_their_step(trial: Trial) -> None:
    """The drafts are the model's own answers, which repeat tokens at once where penalties do not."""
    asked = SamplingParams(frequency_penalty=2.0, presence_penalty=2.0).within(trial.fields)
    prompts = [text_tokens(text, trial.subject.vocab_size)[:4] for text in range(12)]
    wanted = tuple(Request(f"r{i}", each, 12, sampling=asked) for i, each in enumerate(prompts))
    drafts = {"num_speculative_tokens": 5, "draft_agreement": 1.0}
    trial.check(Workload(wanted, EngineConfig(max_num_seqs=12, **drafts)))
