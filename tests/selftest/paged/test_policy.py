"""The paged engine's policy: every rule in thousands of random schedules, against a model; then which
blocks are evicted or found again, and what a step costs."""

from __future__ import annotations

import gc
import sys

import pytest

from batchproof.api import EngineConfig, FinishReason, Limits, Request
from batchproof_paged.block_manager import BlockManager
from batchproof_paged.scheduler import Scheduler
from batchproof_paged.sequence import PENDING, Sequence
from tests.selftest.paged.policy_model import PolicyModel, play

SIZE = 2
LIMITS = Limits(vocab_size=1000, max_model_len=10_000)


def test_thousands_of_schedules_keep_every_rule() -> None:
    played = [play(seed, PolicyModel) for seed in range(200)]
    assert sum(each.num_schedules for each in played) > 5_000
    # What it is about has happened, and often.
    assert sum(each.num_preemptions for each in played) > 200
    assert sum(each.num_hits for each in played) > 500
    assert sum(each.num_evictions for each in played) > 500


# ---- the prefix cache ----------------------------------------------------------------------------


def cache(num_blocks: int | None, num_lanes: int = 4) -> BlockManager:
    return BlockManager(num_blocks, SIZE, num_lanes, has_prefix_cache=True)


def sequence(*token_ids: int, lane: int = 0) -> Sequence:
    return Sequence(Request("r", token_ids, 100), list(token_ids), lane=lane)


def computed(blocks: BlockManager, *token_ids: int, lane: int = 0) -> Sequence:
    """Returns a sequence whose tokens are all in the cache, from the prefix cache where possible."""
    made = sequence(*token_ids, lane=lane)
    blocks.adopt(made, blocks.match(made))
    blocks.allocate(made, made.num_tokens)
    made.num_computed_tokens = made.num_tokens
    blocks.publish(made)
    return made


def num_hits(blocks: BlockManager, *token_ids: int) -> int:
    """Returns how many cached blocks a prompt would reuse; one more token follows them."""
    return len(blocks.match(sequence(*token_ids, 999)))


def test_the_block_longest_unused_is_evicted_first() -> None:
    blocks = cache(3)
    for tokens in ((1, 1), (2, 2), (3, 3)):
        blocks.release(computed(blocks, *tokens))
    blocks.release(computed(blocks, 1, 1, 4))  # used again: now the last in line, 4's block is blank
    computed(blocks, 5, 5, 6)
    assert [num_hits(blocks, n, n) for n in (1, 2, 3)] == [1, 0, 0]


def test_of_a_sequence_the_tail_is_evicted_first() -> None:
    blocks = cache(3)
    blocks.release(computed(blocks, 1, 2, 3, 4, 5, 6))
    found = []
    for lane in range(3):
        computed(blocks, 7 + lane, lane=lane)
        found.append(num_hits(blocks, 1, 2, 3, 4, 5, 6))
    assert found == [2, 1, 0]


def test_what_followed_an_evicted_block_cannot_be_reached() -> None:
    """Two sequences compute the same prefix at once. The blocks of the first are published, with later
    ones of the second after them; then those of the first are evicted."""
    blocks = cache(5)
    first, second = sequence(1, 2, lane=0), sequence(1, 2, 3, 4, lane=1)
    for each in (first, second):
        blocks.allocate(each, each.num_tokens)
        each.num_computed_tokens = each.num_tokens
    for each in (first, second):
        blocks.publish(each)
    assert num_hits(blocks, 1, 2, 3, 4) == 2
    blocks.release(first)
    fillers = [computed(blocks, n, lane=n % 4) for n in (50, 60, 70)]
    assert num_hits(blocks, 1, 2, 3, 4) == 0, "its parent is gone"
    blocks.check_integrity([second, *fillers])
    blocks.release(fillers.pop())
    again = computed(blocks, 1, 2, lane=2)
    assert num_hits(blocks, 1, 2, 3, 4) == 1, "the parent came back, under another content id"
    blocks.check_integrity([second, again, *fillers])


class Weak(int):
    """A token id whose hash says nothing."""

    def __hash__(self) -> int:
        return 0


def test_equal_hashes_prove_nothing() -> None:
    blocks = cache(None)
    prompts = [
        [Weak(token) for token in tokens] for tokens in ((1, 2, 3, 4), (1, 2, 4, 3), (2, 1, 3, 4))
    ]
    held = [computed(blocks, *prompt, lane=lane) for lane, prompt in enumerate(prompts)]
    for owner, prompt in zip(held, prompts, strict=True):
        assert blocks.match(sequence(*prompt, Weak(5))) == tuple(owner.block_table)
    assert held[0].block_table[0] == held[1].block_table[0], "so far they are the same"
    assert len({owner.block_table[1] for owner in held}) == 3, (
        "the same tokens behind others are others"
    )


def test_a_token_is_awaited_unless_its_sequence_ended_before_or_was_aborted() -> None:
    late = Sequence(Request("a", (1, 2), 5, frozenset({7})), [1, 2, PENDING, PENDING])
    assert late.awaits(3)
    assert not late.awaits(4)
    assert late.reveal(2, 7)
    assert (late.token_ids, late.finish_reason) == ([1, 2, 7], FinishReason.STOP)
    assert not late.awaits(3), "it was fed before its EOS was read"
    aborted = Sequence(Request("b", (1,), 5), [1, PENDING], finish_reason=FinishReason.ABORTED)
    assert not aborted.awaits(1)


# ---- lanes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [None, 64])
def test_a_sequence_stays_in_its_lane_while_there_is_room(num_blocks: int | None) -> None:
    """The CPU then reads it as one view, whatever other sequences have come and gone."""
    scheduler = Scheduler(LIMITS, EngineConfig(max_num_seqs=4, block_size=SIZE, num_blocks=num_blocks))
    for number in range(12):
        scheduler.add(Request(f"r{number}", tuple(range(1 + number % 5)), 2 + number % 4))
    while scheduler.running or scheduler.waiting:
        plan = scheduler.schedule()
        for each in scheduler.running:
            assert each.block_table == [each.lane + 4 * i for i in range(len(each.block_table))]
        scheduler.update(plan.scheduled, [7] * len(plan.scheduled))


# ---- cost ----------------------------------------------------------------------------------------


def num_calls(scheduler: Scheduler) -> int:
    """Returns the number of calls of Python and C functions in one step."""
    events = 0

    def count(*_: object) -> None:
        nonlocal events
        events += 1

    gc.disable()  # a collection calls functions of others
    sys.setprofile(count)
    try:
        plan = scheduler.schedule()
        scheduler.update(plan.scheduled, [7 for each in plan.scheduled if each.is_sampled])
    finally:
        sys.setprofile(None)
        gc.enable()
    return events


class Untouchable:
    """A queued element that must not be touched."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"a step looked at {name} of one that waits behind the head")


@pytest.mark.parametrize("has_prefix_cache", [False, True])
def test_a_step_costs_the_same_however_many_wait_or_are_gone(has_prefix_cache: bool) -> None:
    config = EngineConfig(
        max_num_seqs=4, block_size=SIZE, num_blocks=64, prefix_caching=has_prefix_cache
    )

    def costs(num_gone: int, num_waiting: int) -> list[int]:
        """Of three steps, in the first of which four are admitted."""
        scheduler = Scheduler(LIMITS, config)
        for number in range(num_gone):
            scheduler.add(Request(f"gone-{number}", (1, 2, 3), 2))
        while scheduler.running or scheduler.waiting:
            plan = scheduler.schedule()
            scheduler.update(plan.scheduled, [7] * len(plan.scheduled))
        for number in range(4):
            scheduler.add(Request(f"r{number}", (10 + number, 2, 3), 9))
        scheduler.waiting.extend([Untouchable()] * num_waiting)  # type: ignore[list-item]
        return [num_calls(scheduler) for _ in range(3)]

    few, many_wait, many_gone = costs(8, 0), costs(8, 1000), costs(1008, 0)
    assert max(few) < 500
    assert [abs(a - b) < 5 for a, b in zip(few, many_wait, strict=True)] == [True] * 3
    assert [abs(a - b) < 5 for a, b in zip(few, many_gone, strict=True)] == [True] * 3
