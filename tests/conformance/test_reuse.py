"""P8: the n-th call answers as the first would; a slot's next tenant sees nothing of the last."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import EngineConfig, Request
from batchproof.checks.happened import has_slot_reuse
from batchproof.generators.conversations import conversations
from batchproof.generators.strategies import asking, prompts, workloads
from batchproof.models.embedded import STATE_MODEL
from batchproof.requirements.promises import Promise
from batchproof.run.cancelling import check_run_with_aborts
from batchproof.run.relations import blame, check_returned_logits, require_same_bits
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = pytest.mark.promise(id="P8")

NUM_BURSTS = 8


@pytest.mark.also_on(STATE_MODEL)
@pytest.mark.three_models
@given(data=st.data())
def test_a_used_engine_answers_as_a_fresh_one(trial: Trial, data: st.DataObject) -> None:
    """Compares bit for bit, whatever the engine served before."""
    workload = data.draw(workloads(trial, with_eos=False))
    history = data.draw(st.lists(workloads(trial), min_size=1, max_size=2))
    fresh = trial.run(workload).completions
    with trial.engine(workload.config) as engine:
        for earlier in history:
            requests = [r for r in earlier.requests if _fits(r, workload)]
            trial.run(workload.with_requests(requests), engine)
        used = trial.run(workload, engine).completions
    with trial.reporting(workload):
        require_same_bits(trial, Promise.P8, "on an engine that has served others before", fresh, used)


def _fits(request: Request, workload: Workload) -> bool:
    """Returns whether the request can be served under the other workload's limits."""
    config = workload.config
    length = len(request.prompt_token_ids) + request.max_new_tokens
    capacity = length if config.num_blocks is None else config.num_blocks * config.block_size
    return length <= min(capacity, config.max_num_batched_tokens, config.max_model_len or length)


@pytest.mark.also_on(STATE_MODEL)
@pytest.mark.one_model
@given(data=st.data())
def test_short_tenants_follow_long_ones_in_the_same_slot(trial: Trial, data: st.DataObject) -> None:
    """Serves three waves long, short, long through fewer slots than requests: what a long tenant left
    behind lies within reach of the short one."""
    num = data.draw(st.integers(1, 3), label="max_num_seqs")
    wanted = [
        *data.draw(asking(trial.oracle, "long", [6] * num, st.integers(20, 36))),
        *data.draw(asking(trial.oracle, "short", [3] * num, st.integers(1, 4))),
        *data.draw(asking(trial.oracle, "again", [3] * num, st.integers(15, 36))),
    ]
    config = EngineConfig(max_num_seqs=num, return_logits=trial.has_logits)
    trace = trial.check_calls([Workload(tuple(wanted), config)])
    trial.must_show("slot that was used again", has_slot_reuse(trace, num))


@pytest.mark.one_model
@given(data=st.data())
def test_the_eos_ids_of_a_former_tenant_stop_nobody(trial: Trial, data: st.DataObject) -> None:
    """Serves newcomers without EOS ids whose right answers hold those of the tenants before them."""
    count, lengths = data.draw(st.integers(1, 3), label="max_num_seqs"), st.integers(1, 12)
    newcomers = data.draw(asking(trial.oracle, "new", [6] * count, lengths))
    theirs = frozenset().union(
        *(trial.oracle.right_tokens(each.prompt_token_ids, 6) for each in newcomers)
    )
    drawn = data.draw(asking(trial.oracle, "old", [4] * count, lengths))
    tenants = [replace(each, eos_token_ids=theirs) for each in drawn]
    with blame(Promise.P8, "after tenants with EOS ids of their own"):
        trial.check(Workload((*tenants, *newcomers), EngineConfig(max_num_seqs=count)))


@pytest.mark.one_model
@given(data=st.data())
def test_prompts_that_look_alike_share_nothing(trial: Trial, data: st.DataObject) -> None:
    """Serves what an engine may take for a prompt it knows: the same beginning, the same tokens in
    another order, one more or one less."""
    block_size = data.draw(st.sampled_from([2, 4]), label="block_size")
    prompt = data.draw(prompts(trial.subject, st.integers(2 * block_size, 20)))
    cut = data.draw(st.integers(2, len(prompt)), label="length of the part in another order")
    alike = (
        prompt,
        prompt[:cut][::-1] + prompt[cut:],
        prompt[:-1],
        prompt[:block_size] + prompt[::-1],
        prompt[1:],
        prompt,
    )
    config = EngineConfig(max_num_seqs=2, block_size=block_size, return_logits=trial.has_logits)
    wanted = tuple(Request(f"r{i}", each, 3) for i, each in enumerate(alike))
    with blame(Promise.P8, "after prompts that look alike"):
        trial.check_calls([Workload(call, config) for call in (wanted, wanted[::-1])])


@pytest.mark.also_on(STATE_MODEL)
@pytest.mark.one_model
@given(data=st.data())
def test_conversations_come_back_in_any_order(trial: Trial, data: st.DataObject) -> None:
    """Serves bursts of requests: turns, forks and beginnings of conversations before, and others. What
    was kept of one is found by the next that begins alike, and by no other."""
    calls = data.draw(conversations(trial, NUM_BURSTS))
    among = blame(Promise.P8, "among other conversations", trial)
    with trial.engine(calls[0].config) as engine, among:
        for call in calls:
            (check_run_with_aborts if call.aborts else Trial.check)(trial, call, engine)


@pytest.mark.one_model
@given(data=st.data())
def test_ids_may_be_used_again_in_the_next_call(trial: Trial, data: st.DataObject) -> None:
    config = EngineConfig(max_num_seqs=2)
    with trial.engine(config) as engine:
        for call in range(3):
            prompt = data.draw(prompts(trial.subject, st.integers(1, 12)))
            requests = (Request("a", prompt, 3), Request("b", prompt[::-1], 2))
            with blame(Promise.P8, f"in call {call + 1} with the same ids", trial):
                trial.check(Workload(requests, config), engine)


@pytest.mark.one_model
@pytest.mark.needs("logits")
def test_a_later_call_leaves_returned_logits_alone(trial: Trial) -> None:
    config = EngineConfig(return_logits=True)
    first, second = Request("first", (1, 2, 3), 4), Request("second", (5, 4, 3, 2), 4)
    check_returned_logits(trial, [Workload((each,), config) for each in (first, second)])
