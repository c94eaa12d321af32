"""A prefix cache changes no answer: what a request takes over is what it would have computed.

`trial.check` also holds each trace against P7: no request begins behind tokens that were never
computed.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchproof.api import Capability, EngineConfig, Request
from batchproof.checks.happened import HITS, happened_in, has_shared_block
from batchproof.generators.sharing import block_prompts, shared_prefixes
from batchproof.generators.strategies import prompts, text_tokens
from batchproof.models.embedded import STATE_MODEL
from batchproof.requirements.promises import Promise
from batchproof.run.relations import blame
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

pytestmark = pytest.mark.shows("prefix_caching")

BEHIND = "behind a prefix that was taken over"


@pytest.mark.also_on(STATE_MODEL)
@pytest.mark.promise(id="P1")
@given(data=st.data())
def test_prompts_that_share_prefixes_keep_parity(trial: Trial, data: st.DataObject) -> None:
    """Serves A, other content in the same blocks, A again, twins, and the next turn of a chat."""
    trial.check_calls(data.draw(shared_prefixes(trial)), HITS)


@pytest.mark.promise(id="P5")
@pytest.mark.needs("scheduling", "stepping")
@pytest.mark.one_model
@given(data=st.data())
def test_neighbours_with_one_new_prefix_stay_apart(trial: Trial, data: st.DataObject) -> None:
    """Two requests compute the same prefix in one step, and the first of them ends early. While the
    other continues, a third may be given the freed blocks, and a fourth takes the prefix over."""
    block_size = data.draw(st.sampled_from(trial.block_sizes), label="block_size")
    blocks = block_prompts(trial.subject.vocab_size, block_size, max_blocks=2)
    prefix = data.draw(blocks, label="prefix")
    foreign = prompts(trial.subject, st.integers(block_size, 3 * block_size))
    short, long = data.draw(st.permutations([1, 10]), label="caps of the two")
    wanted = (
        Request("twin-0", (*prefix, 5, 6), short),
        Request("twin-1", (*prefix, 5, 6), long),
        Request("other", data.draw(foreign, label="other"), 4),
        Request("heir", (*prefix, 7), 3),
    )
    largest = max(len(each.prompt_token_ids) + each.max_new_tokens for each in wanted)
    roomy = largest // block_size + 4 if Capability.PREEMPTION in trial.capabilities else None
    config = EngineConfig(max_num_seqs=3, block_size=block_size, num_blocks=roomy, prefix_caching=True)
    first, again = Workload(wanted, config, (0, 0, 2, 4)), Workload(wanted[-1:], config)
    with blame(Promise.P5, "beside others with the same prefix"):
        trial.check_calls([first, again, again], HITS)


@pytest.mark.also_on(STATE_MODEL)
@pytest.mark.promise(id="P7")
@pytest.mark.one_model
@given(data=st.data())
def test_a_prompt_that_is_cached_to_its_end_goes_on_from_there(
    trial: Trial, data: st.DataObject
) -> None:
    """Repeats the same whole blocks, so that something must be left to feed, and continues prompts with
    their answer, whose blocks were written token by token."""
    block_size = data.draw(st.sampled_from(trial.block_sizes), label="block_size")
    num_blocks = data.draw(st.integers(1, 4), label="blocks of the prompt")
    prompt = data.draw(prompts(trial.subject, st.just(num_blocks * block_size)))
    cap = 2 * block_size + 1
    answer = trial.oracle.right_tokens(prompt, cap)
    ends = data.draw(st.lists(st.integers(1, cap), min_size=1, max_size=3), label="answer up to")
    again = [Request(f"after-{end}-{i}", prompt + answer[:end], 3) for i, end in enumerate(ends)]
    config = EngineConfig(
        max_num_seqs=2, block_size=block_size, return_logits=trial.has_logits, prefix_caching=True
    )
    # An engine that carries states takes over no more than ends where it kept them, which may be at the
    # end of a prompt alone.
    once_more = replace(again[-1], request_id="once-more")
    with trial.engine(config) as engine:
        trial.check(Workload((Request("first", prompt, cap),), config), engine)
        with blame(Promise.P7, BEHIND):
            trial.check(Workload((Request("same", prompt, cap), *again), config), engine)
            trial.check(Workload((once_more,), config), engine)
        trial.must_show(HITS, happened_in(trial.trace_of(engine))[HITS] > 0)


@pytest.mark.also_on(STATE_MODEL)
@pytest.mark.promise(id="P8")
@pytest.mark.shows("preemption")
@pytest.mark.one_model
@given(data=st.data())
def test_a_prefix_whose_blocks_were_given_away_is_not_found(trial: Trial, data: st.DataObject) -> None:
    """Fills the pool with A, then with B, twice, then serves A twice: nothing of A may be read from
    B's blocks or stand for them, and what A computes anew is as good as the first time."""
    block_size = data.draw(st.sampled_from(trial.block_sizes), label="block_size")
    length = data.draw(st.integers(2 * block_size + 1, 4 * block_size), label="length of A")
    longer = length + data.draw(st.integers(0, block_size), label="B is longer by")
    texts = data.draw(st.lists(st.integers(0, 9), min_size=2, max_size=2, unique=True), label="texts")
    old, new = (text_tokens(text, trial.subject.vocab_size) for text in texts)
    old, new = old[:length], new[:longer]
    spare = data.draw(st.integers(0, 1), label="blocks to spare")
    config = EngineConfig(
        max_num_seqs=1,
        block_size=block_size,
        num_blocks=-(-(longer + 2) // block_size) + spare,
        return_logits=trial.has_logits,
        prefix_caching=True,
    )
    hits = []
    behind = blame(Promise.P8, "once its blocks had been given away", trial)
    with trial.engine(config) as engine, behind:
        asked = [("a", old), ("b", new), ("b-again", new), ("a-again", old), ("a-once-more", old)]
        for name, prompt in asked:
            num_before = len(trial.trace_of(engine))
            trial.check(Workload((Request(name, prompt, 3),), config), engine)
            fresh = trial.trace_of(engine)[num_before:]
            hits.append(fresh[0].rows[0].context_len if fresh else 0)
    trial.must_show(HITS, hits[4] > 0)
    trial.must_show("prefix that was given up and computed again", hits[3] < hits[4])


@pytest.mark.promise(id="P10")
@pytest.mark.shows("preemption")
@pytest.mark.one_model
@given(data=st.data())
def test_what_is_cached_gives_way_to_what_is_asked(trial: Trial, data: st.DataObject) -> None:
    """Admits request after request while the pool is full of what earlier ones left."""
    block_size = data.draw(st.sampled_from(trial.block_sizes), label="block_size")
    lengths = st.integers(block_size + 1, 4 * block_size)
    drawn = prompts(trial.subject, lengths)
    asked = data.draw(st.lists(drawn, min_size=3, max_size=5), label="prompts")
    wanted = tuple(Request(f"r{i}", prompt, 3) for i, prompt in enumerate(asked))
    config = EngineConfig(
        max_num_seqs=data.draw(st.integers(1, 2), label="max_num_seqs"),
        block_size=block_size,
        num_blocks=-(-(max(map(len, asked)) + 2) // block_size),
        return_logits=trial.has_logits,
        prefix_caching=True,
    )
    calls = (wanted, wanted[:1], wanted[:1])
    trial.check_calls([Workload(call, config) for call in calls], HITS)


@pytest.mark.promise(id="P11")
@pytest.mark.needs("preemption", "scheduling", "stepping")
@pytest.mark.one_model
@given(data=st.data())
def test_shared_blocks_are_used_once_and_all_come_back(trial: Trial, data: st.DataObject) -> None:
    """Lets sharers come and go at different times, the last to come of half the prefix only; the last
    one to leave must free it."""
    block_size = data.draw(st.sampled_from(trial.block_sizes), label="block_size")
    prefix = data.draw(prompts(trial.subject, st.just(2 * block_size)), label="prefix")
    caps = data.draw(st.lists(st.integers(2, 9), min_size=3, max_size=4), label="caps")
    shared = [*[prefix] * len(caps), prefix[:block_size]]
    caps = [2 * len(shared) + 3, *caps]  # the first to come is there when the last does
    wanted = tuple(
        Request(f"r{i}", (*own, i), cap) for i, (own, cap) in enumerate(zip(shared, caps, strict=True))
    )
    config = EngineConfig(
        max_num_seqs=4, block_size=block_size, num_blocks=8 * len(wanted), prefix_caching=True
    )
    arrivals = tuple(2 * i for i in range(len(wanted)))
    trace = trial.check_calls([Workload(wanted, config, arrivals)], HITS)
    trial.must_show("block that two use at once", has_shared_block(trace, block_size))
