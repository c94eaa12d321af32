"""Wide, long and many: an engine may serve few short requests well, and fail at the ninth sequence,
the hundredth request or a context of a thousand tokens.

Sizes are swept rather than drawn. Right answers come from integers where the model has them, so that
the engine alone computes.
"""

import math
import time
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request
from batchproof.generators.counts import COUNTS
from batchproof.generators.strategies import (
    around,
    around_powers,
    cut_prompt,
    fewer_examples,
    longest_context,
    requests_of_lengths,
    short_requests,
    wide_workloads,
)
from batchproof.models.embedded import QUICK_STATE_MODEL
from batchproof.requirements.promises import Promise
from batchproof.run.relations import blame
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = pytest.mark.long_model

IS_THOROUGH = settings().max_examples >= 100
IS_NAMED = settings().max_examples >= 10  # the engine; the built-in ones are swept to `Count.least`
WIDEST = 256 if IS_THOROUGH else 64
LONG_ANSWER = 1030 if IS_NAMED else 260  # tokens; a step each
LARGE = 4096 if IS_THOROUGH else LONG_ANSWER  # tokens; beyond, two lengths for each power will do


def sweep(trial: Trial, name: str) -> None:
    """Takes a count across one power of two after the other, and judges every answer on the way."""
    count = COUNTS[name]
    seconds = count.seconds if IS_NAMED else 0.0
    if IS_THOROUGH and trial.subject.oracle is not None:
        seconds = math.inf
    began, lasted, reached, shown = time.monotonic(), 0.0, 0, 0
    with ExitStack() as kept:
        for size in count.sizes(7 if IS_NAMED else count.least):
            now = time.monotonic()
            # Twice the tokens, of twice the length, may take four times as long.
            if reached > 1 << count.least and now - began + 4 * lasted > seconds:
                break
            calls = count.calls(trial.oracle, reached, size)
            if not (count.grows and reached):
                kept.close()
                engine = kept.enter_context(trial.engine(calls[0].config))
            where = f"after {reached:,}" if count.grows else f"with {size:,}"
            with blame(count.promise, f"{where} {name}"):
                for call in calls:
                    trial.check(call, engine)
            reached, lasted = size, time.monotonic() - now
            shown = count.shown(trial.trace_of(engine))
    is_owed = count.is_owed and Capability.SCHEDULING in trial.capabilities
    trial.must_show(f"{reached:,} {name}", shown >= reached if is_owed else shown > 0)
    if IS_NAMED:
        lacks = Capability.TRACING in trial.capabilities and shown < reached
        seen = f" (its trace shows {shown:,})" if lacks else ""
        trial.ledger.note_item(f"{trial.spec.name} was swept to", f"{reached:,} {name}{seen}")


@pytest.mark.promise(id="P8")
@pytest.mark.parametrize("name", ["steps", "tokens fed"])
def test_an_engine_that_has_done_much_keeps_parity(trial: Trial, name: str) -> None:
    sweep(trial, name)


@pytest.mark.promise(id="P17")
@pytest.mark.needs("speculation")
@pytest.mark.parametrize("name", ["drafts accepted", "tokens fed to verify drafts in a step"])
def test_many_drafts_keep_parity(trial: Trial, name: str) -> None:
    sweep(trial, name)


@pytest.mark.promise(id="P5")
def test_many_sequences_at_once_keep_parity(trial: Trial) -> None:
    """Fills each number of slots around a power of two: all of them decode at once, and one more
    request waits."""
    for slots in around_powers(2, 65):
        wanted = short_requests(trial.subject.vocab_size, slots + 1, first=slots, least_cap=2)
        with blame(Promise.P5, f"beside others in {slots} slots"):
            trial.check(Workload(wanted, EngineConfig(max_num_seqs=slots)))
    sweep(trial, "slots")


@pytest.mark.promise(id="P5")
@pytest.mark.needs("stepping")
@pytest.mark.also_on(QUICK_STATE_MODEL)
def test_a_batch_that_grows_while_it_decodes_keeps_parity(trial: Trial) -> None:
    """One request arrives in each step until all slots are taken, and none ends before."""
    num = 66 if IS_NAMED else 18
    wanted = (
        Request(f"r{n}", cut_prompt(trial.subject.vocab_size, 7 * n, 1 + n % 3), num - n + 2)
        for n in range(num)
    )
    trial.check(Workload(tuple(wanted), EngineConfig(max_num_seqs=num), tuple(range(num))))


@pytest.mark.promise(id="P5")
def test_many_tokens_at_once_keep_parity(trial: Trial) -> None:
    """Fills a pool with a block for each token, and decodes while all are held."""
    sweep(trial, "tokens held")


@pytest.mark.promise(id="P5")
@pytest.mark.shows("prefix_caching", "preemption")
def test_many_sharers_of_a_block_keep_parity(trial: Trial) -> None:
    sweep(trial, "sharers")


@pytest.mark.promise(id="P5")
@pytest.mark.shows("prefix_caching", "preemption")
def test_prompts_that_end_alike_for_many_blocks_keep_parity(trial: Trial) -> None:
    """Blocks of equal tokens are shared only if all before them are equal."""
    sweep(trial, "blocks of a prefix")


@pytest.mark.promise(id="P9")
@pytest.mark.needs("stepping")
def test_a_queue_of_hundreds_of_steps_keeps_parity(trial: Trial) -> None:
    """Two slots serve 280 requests. One arrives in each step, which is more than is served, so that
    ever more wait."""
    wanted = short_requests(trial.subject.vocab_size, 280, first=0, least_cap=2)
    arrivals = tuple(range(len(wanted)))
    trial.check(Workload(wanted, EngineConfig(max_num_seqs=2), arrivals))


@pytest.mark.promise(id="P10")
@pytest.mark.shows("preemption")
def test_a_request_that_needs_the_whole_of_a_large_pool_is_served(trial: Trial) -> None:
    """Gives one request exactly the blocks of the pool, and others that wait for them."""
    vocab_size, block_size = trial.subject.vocab_size, 4
    most = (longest_context(trial.oracle) - 1) // block_size
    for num_blocks in (each for each in (16, 99, 128, 257) if each <= most):
        length = num_blocks * block_size - 2  # the last of its tokens is never fed
        large = Request("large", cut_prompt(vocab_size, num_blocks, length), 3)
        config = EngineConfig(max_num_seqs=4, block_size=block_size, num_blocks=num_blocks)
        trial.check(Workload((large, *short_requests(vocab_size, 3, first=0)), config))


@pytest.mark.promise(id="P1")
def test_long_answers_keep_parity(trial: Trial) -> None:
    """Gives answers of more than 256 tokens (1,024 to an engine that is named), with logits if it has
    them, while short ones come and go."""
    vocab_size = trial.subject.vocab_size
    longest = min(LONG_ANSWER, longest_context(trial.oracle) - 9)
    long = tuple(Request(f"long-{n}", cut_prompt(vocab_size, n, 2 + n), longest - n) for n in range(2))
    short = short_requests(vocab_size, 6, first=0)
    config = EngineConfig(max_num_seqs=3, return_logits=trial.has_logits)
    trial.check(Workload((*long, *short), config))


@pytest.mark.promise(id="P1")
def test_long_contexts_keep_parity(trial: Trial) -> None:
    """Feeds prompts around each power of two, decodes across it, and ends at the model's last
    position."""
    longest = longest_context(trial.oracle)
    powers = [1 << exponent for exponent in range(5, longest.bit_length())]
    few = [-1, 0] if IS_NAMED else [0]
    calls = [[*around(size), size - 3] if size <= LARGE else [size + d for d in few] for size in powers]
    for lengths in (*calls, [longest - 3]):
        fitting = (length for length in lengths if length <= longest - 3)
        wanted = requests_of_lengths(trial.subject.vocab_size, fitting)
        if wanted:
            trial.check(Workload(wanted, EngineConfig(max_num_seqs=4)))


@pytest.mark.promise(id="P1")
def test_sizes_around_every_limit_keep_parity(trial: Trial) -> None:
    """Block, token budget and context are as large as a prompt, one smaller, or one larger."""
    in_chunks = Capability.CHUNKED_PREFILL in trial.capabilities
    for size in around_powers(3, min(257, longest_context(trial.oracle) - 4)):
        wanted = requests_of_lengths(trial.subject.vocab_size, around(size))
        config = EngineConfig(
            max_num_seqs=3,
            max_num_batched_tokens=size if in_chunks else 2048,
            block_size=size,
            max_model_len=size + 4,
        )
        trial.check(Workload(wanted, config))


@pytest.mark.promise(id="P1")
@fewer_examples(4)
@given(data=st.data())
def test_wide_workloads_keep_parity(trial: Trial, data: st.DataObject) -> None:
    trial.check(data.draw(wide_workloads(trial, WIDEST)))


@pytest.mark.promise(id="P8")
def test_the_thousandth_request_keeps_parity(trial: Trial) -> None:
    """Serves one engine more than 1,024 requests in ever wider calls, all with new ids and prompts."""
    sweep(trial, "requests served")
