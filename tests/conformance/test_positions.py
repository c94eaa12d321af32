"""P7: positions start at 0 in each sequence and continue from what is cached."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import EngineConfig, Request
from batchproof.checks.happened import CHUNKS
from batchproof.generators.strategies import prompts, workloads
from batchproof.models.embedded import STATE_MODEL
from batchproof.requirements.promises import Promise
from batchproof.run.relations import blame
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = pytest.mark.promise(id="P7")


@pytest.mark.also_on(STATE_MODEL)
@pytest.mark.three_models
@given(data=st.data())
def test_an_answer_resumes_from_any_of_its_tokens(trial: Trial, data: st.DataObject) -> None:
    """Requires that prompt + first k outputs, as a new prompt, continues the same: decoding and
    prefilling a token must be equivalent. A decode position off by one cannot pass this, nor a
    token fed twice."""
    prompt = data.draw(prompts(trial.subject, st.integers(1, 24)))
    answer = trial.oracle.right_tokens(prompt, 8)
    resumed = [Request(f"after-{k}", prompt + answer[:k], 8 - k) for k in range(8)]
    with blame(Promise.P7, "when the answer was resumed from its own first tokens"):
        trial.check(Workload(tuple(resumed), EngineConfig(max_num_seqs=3)))


@pytest.mark.needs("tracing")
@pytest.mark.one_model
@given(data=st.data())
def test_each_step_continues_where_the_cache_ends(trial: Trial, data: st.DataObject) -> None:
    trial.check(data.draw(workloads(trial)))


@pytest.mark.also_on(STATE_MODEL)
@pytest.mark.needs("chunked_prefill", "tracing")
@pytest.mark.one_model
@given(data=st.data())
def test_a_prompt_fed_in_chunks_is_answered_as_a_whole(trial: Trial, data: st.DataObject) -> None:
    budget = data.draw(st.integers(2, 7), label="token budget")
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=4), label="lengths")
    wanted = [
        Request(f"r{i}", data.draw(prompts(trial.subject, st.just(n))), 4)
        for i, n in enumerate(lengths)
    ]
    edges = [budget, budget + 1, 3 * budget, 3 * budget + 1]  # the last chunk: whole, or one token
    wanted.append(Request("edge", data.draw(prompts(trial.subject, st.sampled_from(edges))), 4))
    wanted.append(Request("long", data.draw(prompts(trial.subject, st.just(4 * budget + 1))), 4))
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=budget, return_logits=trial.has_logits)
    trial.check_calls([Workload(tuple(wanted), config)], CHUNKS)
