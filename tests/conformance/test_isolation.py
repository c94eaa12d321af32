"""P5: a request's answer does not depend on its neighbours. No cross-sequence leakage."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request
from batchproof.generators.strategies import cut_prompt, prompts, workloads
from batchproof.models.embedded import STATE_MODEL
from batchproof.requirements.promises import Promise
from batchproof.run.relations import blame, has_one_schedule, require_same_bits
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = pytest.mark.promise(id="P5")


@pytest.mark.also_on(STATE_MODEL)
@pytest.mark.three_models
@given(data=st.data())
def test_rewriting_the_neighbours_moves_no_bit(trial: Trial, data: st.DataObject) -> None:
    """Keeps lengths, caps and arrivals and changes contents: all kernel shapes stay, so this holds
    bit for bit in every dtype and sees one leaked key in one query."""
    workload = data.draw(workloads(trial, min_requests=2, with_eos=False))
    kept = data.draw(st.integers(0, len(workload.requests) - 1), label="request that stays")
    rewritten = [
        request if index == kept else _rewritten(request, trial, data)
        for index, request in enumerate(workload.requests)
    ]
    answers, traces = [], []
    for each in (workload, workload.with_requests(rewritten)):
        with trial.engine(each.config) as engine:
            answers.append([trial.run(each, engine).completions[kept]])
            traces.append(trial.trace_of(engine))
    relation, is_alike = "when its neighbours are rewritten", has_one_schedule(trial, traces)
    with trial.reporting(workload):
        require_same_bits(trial, Promise.P5, relation, *answers, has_same_shapes=is_alike)


def _rewritten(request: Request, trial: Trial, data: st.DataObject) -> Request:
    shift = data.draw(st.integers(1, trial.subject.vocab_size - 1), label="shift of its tokens")
    changed = tuple((token + shift) % trial.subject.vocab_size for token in request.prompt_token_ids)
    return replace(request, prompt_token_ids=changed)


@pytest.mark.also_on(STATE_MODEL)
@pytest.mark.one_model
@given(data=st.data())
def test_neighbours_may_come_and_go(trial: Trial, data: st.DataObject) -> None:
    """Requires the same right answer with all, some and none of the neighbours."""
    workload = data.draw(workloads(trial, min_requests=3))
    kept = data.draw(st.sets(st.sampled_from(range(len(workload.requests))), min_size=1), label="kept")
    fewer = workload.with_requests([workload.requests[index] for index in sorted(kept)])
    trial.check(workload)
    with blame(Promise.P5, "when neighbours were removed"):
        trial.check(fewer)


@pytest.mark.one_model
@given(data=st.data())
def test_the_order_of_the_batch_changes_no_answer(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(workloads(trial, min_requests=3))
    trial.check(workload)
    order = data.draw(st.permutations(range(len(workload.requests))), label="order")
    with blame(Promise.P5, "when the batch was put in another order"):
        trial.check(workload.with_requests([workload.requests[index] for index in order]))


@pytest.mark.one_model
@given(data=st.data())
def test_identical_prompts_get_identical_answers(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(workloads(trial, min_requests=3, with_eos=False))
    prompt = data.draw(prompts(trial.subject, st.integers(1, 20)))
    same = [replace(request, prompt_token_ids=prompt) for request in workload.requests]
    roomy = workload.with_config(num_blocks=None, max_num_batched_tokens=2048, max_model_len=None)
    trial.check(roomy.with_requests(same))


@pytest.mark.needs("stepping")
@pytest.mark.one_model
@given(data=st.data())
def test_the_time_of_arrival_changes_no_answer(trial: Trial, data: st.DataObject) -> None:
    workload = data.draw(workloads(trial, min_requests=3, with_arrivals=True))
    trial.check(workload)
    together = Workload(workload.requests, workload.config, arrivals=(0,) * len(workload.requests))
    with blame(Promise.P5, "when all arrived at once"):
        trial.check(together)


@pytest.mark.needs("stepping")
@pytest.mark.one_model
@given(data=st.data())
def test_a_newcomer_joins_running_decodes_unnoticed(trial: Trial, data: st.DataObject) -> None:
    """Lets others join a request that decodes for a while, one per step."""
    lengths = data.draw(st.lists(st.integers(1, 20), min_size=2, max_size=5), label="lengths")
    wanted = [
        Request(f"r{i}", data.draw(prompts(trial.subject, st.just(n))), 12 if i == 0 else 3)
        for i, n in enumerate(lengths)
    ]
    trial.check(Workload(tuple(wanted), arrivals=tuple(2 * i for i in range(len(wanted)))))


@pytest.mark.on_model("gpt2-nan")
def test_what_is_not_finite_stays_with_its_request(trial: Trial) -> None:
    """Serves prompts whose activations are NaN from their first, middle or last token on, beside and
    before others: a key of weight 0 still reaches its query if its value is NaN, and a cell of a block
    that is used again may hold one."""
    nan_token = trial.subject.vocab_size - 1
    for slots, budget in ((2, 2048), (3, 2048), (3, 4)):
        has_chunks = Capability.CHUNKED_PREFILL in trial.capabilities
        config = EngineConfig(
            max_num_seqs=slots, max_num_batched_tokens=budget if has_chunks else 2048, block_size=4
        )
        good = [
            Request(f"good-{i}", cut_prompt(nan_token, 5 * i, 1 + 3 * i % 11), 2 + i % 3)
            for i in range(9)
        ]
        bad = [
            Request(f"bad-{i}", (*request.prompt_token_ids, nan_token, *after), 3)
            for i, (request, after) in enumerate(zip(good, ((), (1, 2, 3), (4,)), strict=False))
        ]
        wanted = tuple(each for trio in zip(good[:3], bad, good[3:6], strict=True) for each in trio)
        with blame(Promise.P5, "beside requests whose activations are NaN"):
            trial.check_answers(Workload((*wanted, *good[6:]), config))
