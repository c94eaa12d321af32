"""P1: every request is answered exactly as if it had been alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import EngineConfig, Request
from batchproof.checks.happened import CHUNKS, PREEMPTED
from batchproof.generators.strategies import (
    around,
    crowded,
    fewer_examples,
    long_workloads,
    longest_context,
    prompts,
    requests_of_lengths,
    workloads,
)
from batchproof.models.embedded import STATE_MODEL
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = pytest.mark.promise(id="P1")


@pytest.mark.one_model
def test_smoke_an_engine_answers_three_prompts(trial: Trial) -> None:
    texts = ("a", "Batching changes nothing", "but the speed of it.")
    requests = [Request(text, trial.subject.encode(text), 4) for text in texts]
    trial.check(Workload(tuple(requests), EngineConfig(max_num_seqs=2)))


@pytest.mark.also_on(STATE_MODEL)
@given(data=st.data())
def test_generated_workloads_keep_parity(trial: Trial, data: st.DataObject) -> None:
    trial.check(data.draw(workloads(trial)))


@pytest.mark.on_model("bamba-random")
@given(data=st.data())
def test_states_keep_their_precision(trial: Trial, data: st.DataObject) -> None:
    """On the constructed model with states these are small whole numbers, which any dtype holds."""
    trial.check(data.draw(workloads(trial)))


@pytest.mark.on_model("qwen2-mixed")
@fewer_examples(4)
@given(data=st.data())
def test_layers_of_several_kinds_keep_parity(trial: Trial, data: st.DataObject) -> None:
    """Takes a model that has layers with a window and layers without."""
    trial.check(data.draw(long_workloads(trial)))


@pytest.mark.also_on(STATE_MODEL)
@pytest.mark.one_model
@fewer_examples(4)
@given(data=st.data())
def test_long_sequences_in_a_full_batch_keep_parity(trial: Trial, data: st.DataObject) -> None:
    """Leaves the small sizes of the other tests: more slots, contexts of many blocks, some steps with
    every slot taken."""
    trial.check(data.draw(long_workloads(trial)))


@pytest.mark.one_model
def test_lengths_around_powers_of_two_keep_parity(trial: Trial) -> None:
    """Feeds prompts in one piece, and decodes across each size, on a model that reads every key: one
    that is constructed for long contexts reads a few dozen."""
    longest = longest_context(trial.oracle) - 3
    for size in (16, 32, 64, 128, 192, 256):
        lengths = [each for each in (*around(size), size - 3) if each <= longest]
        wanted = requests_of_lengths(trial.subject.vocab_size, lengths)
        config = EngineConfig(max_num_seqs=4, return_logits=trial.has_logits)
        trial.check(Workload(wanted, config))


@pytest.mark.one_model
@fewer_examples(4)
@given(data=st.data())
def test_a_context_filled_to_its_end_keeps_parity(trial: Trial, data: st.DataObject) -> None:
    """Covers, in each example, every remainder when `max_model_len` is divided into blocks."""
    block_size = data.draw(st.sampled_from([3, 4, 5]), label="block_size")
    full_blocks = data.draw(st.integers(2, 6), label="full blocks") * block_size
    for rest in range(block_size):
        length = full_blocks + rest
        cap = min(data.draw(st.integers(rest + 1, rest + 4), label="max_new_tokens"), length - 1)
        full = Request("full", data.draw(prompts(trial.subject, st.just(length - cap))), cap)
        short = Request("short", data.draw(prompts(trial.subject, st.integers(1, length - 3))), 3)
        config = EngineConfig(
            block_size=block_size, max_model_len=length, return_logits=trial.has_logits
        )
        trial.check(Workload((full, short), config))


@pytest.mark.one_model
@pytest.mark.shows("preemption")
@given(data=st.data())
def test_preemption_keeps_parity(trial: Trial, data: st.DataObject) -> None:
    """Requires that a request preempted after some tokens continues as if it had not been."""
    trial.check_calls([data.draw(crowded(trial))], PREEMPTED)


@pytest.mark.also_on(STATE_MODEL)
@pytest.mark.one_model
@pytest.mark.needs("chunked_prefill")
@pytest.mark.shows("preemption")
@given(data=st.data())
def test_preemption_and_chunks_together_keep_parity(trial: Trial, data: st.DataObject) -> None:
    """Feeds a preempted request again in parts, with its outputs in a later part."""
    trial.check_calls([data.draw(crowded(trial, in_chunks=True))], PREEMPTED, CHUNKS)
