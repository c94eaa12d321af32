"""The paged engine's policy in parts: who is evicted, what is found again, what a step costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from batchproof.api import EngineConfig, FinishReason, Limits, Request, RowRecord, StepRecord
from batchproof_engines.paged.block_manager import BlockManager
from batchproof_engines.paged.rows import Rows
from batchproof_engines.paged.scheduler import Scheduler
from batchproof_engines.paged.sequence import PENDING, Sequence
from batchproof_engines.paged.trace import TraceLog

SIZE = 2
LIMITS = Limits(vocab_size=1000, max_model_len=10_000)


# ---- no tensors ----------------------------------------------------------------------------------

WITHOUT_ITS_FRONT_DOOR = """
import sys, types
package = types.ModuleType("batchproof_engines.paged")  # its factory may import what it likes
package.__path__ = [sys.argv[2]]
sys.modules["batchproof_engines.paged"] = package
__import__(f"batchproof_engines.paged.{sys.argv[1]}")
sys.exit("torch" in sys.modules or "transformers" in sys.modules)
"""


@pytest.mark.parametrize("module", ["sequence", "block_manager", "scheduler", "trace"])
def test_the_policy_imports_no_torch(module: str) -> None:
    root = Path(__file__).resolve().parents[3]
    folder = root / "implementations" / "batchproof_engines" / "paged"
    command = [sys.executable, "-c", WITHOUT_ITS_FRONT_DOOR, module, str(folder)]
    assert subprocess.run(command, cwd=root, check=False).returncode == 0


# ---- the prefix cache ----------------------------------------------------------------------------


def cache(num_blocks: int | None, num_lanes: int = 4) -> BlockManager:
    return BlockManager(num_blocks, SIZE, num_lanes, has_prefix_cache=True)


def sequence(*token_ids: int, lane: int = 0) -> Sequence:
    return Sequence(Request("r", token_ids, 100), list(token_ids), lane=lane)


def computed(blocks: BlockManager, *token_ids: int, lane: int = 0) -> Sequence:
    """A sequence whose tokens are all in the cache, as far as possible by taking them over."""
    made = sequence(*token_ids, lane=lane)
    blocks.adopt(made, blocks.match(made))
    blocks.allocate(made, made.num_tokens)
    made.num_computed_tokens = made.num_tokens
    blocks.publish(made)
    return made


def num_hits(blocks: BlockManager, *token_ids: int) -> int:
    """How many blocks a prompt would take over; one more token follows, or the last is not taken."""
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
    """Two compute the same at once. The first's blocks are published, and the second's later ones
    behind them; then the first's are evicted."""
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


def test_a_prompt_that_is_cached_to_its_end_has_a_token_left_to_compute() -> None:
    blocks = cache(None)
    blocks.release(computed(blocks, 1, 2, 3, 4))
    assert len(blocks.match(sequence(1, 2, 3, 4))) == 1
    assert len(blocks.match(sequence(1, 2, 3, 4, 5))) == 2
    assert blocks.match(sequence(1, 2)) == ()


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


def test_a_shared_block_is_free_when_the_last_who_holds_it_lets_go() -> None:
    blocks = cache(4)
    owner = computed(blocks, 1, 2, 3)
    sharer = computed(blocks, 1, 2, 4, lane=1)
    assert owner.block_table[0] == sharer.block_table[0]
    assert blocks.num_free_blocks == 1
    (tail,) = owner.block_table[1:]
    assert blocks.release(owner) == [tail], "the other one is in use"
    blocks.check_integrity([sharer])
    assert blocks.num_free_blocks == 2
    blocks.release(sharer)
    assert blocks.num_free_blocks == 4


def test_without_a_cache_nothing_is_found() -> None:
    blocks = BlockManager(None, SIZE, 1)
    blocks.release(computed(blocks, 1, 2, 3, 4))
    assert num_hits(blocks, 1, 2, 3, 4) == 0


def test_the_same_new_prefix_twice_in_one_step_is_computed_twice_and_kept_once() -> None:
    scheduler = Scheduler(LIMITS, EngineConfig(max_num_seqs=2, block_size=SIZE, prefix_caching=True))
    twins = [scheduler.add(Request(name, (1, 2, 3), 3)) for name in "ab"]
    plan = scheduler.schedule()
    assert [each.context_len for each in plan.scheduled] == [0, 0]
    assert not set(twins[0].block_table) & set(twins[1].block_table), "nothing is published yet"
    scheduler.update(plan.scheduled, [PENDING, PENDING])
    third = sequence(1, 2, 3)
    assert scheduler.blocks.match(third) == (twins[0].block_table[0],)


def test_a_token_is_awaited_unless_its_sequence_ended_before_or_was_aborted() -> None:
    late = Sequence(Request("a", (1, 2), 5, frozenset({7})), [1, 2, PENDING, PENDING])
    assert late.awaits(3)
    assert not late.awaits(4)
    assert late.reveal(2, 7)
    assert (late.token_ids, late.finish_reason) == ([1, 2, 7], FinishReason.STOP)
    assert not late.awaits(3), "it was fed before its EOS was read"
    aborted = Sequence(Request("b", (1,), 5), [1, PENDING], finish_reason=FinishReason.ABORTED)
    assert not aborted.awaits(1)


def test_one_that_waits_again_may_turn_out_to_have_stopped() -> None:
    scheduler = Scheduler(LIMITS, EngineConfig(max_num_seqs=2, block_size=SIZE))
    sequence = scheduler.add(Request("a", (1, 2, 3), 4, frozenset({0})))
    plan = scheduler.schedule()
    scheduler.update(plan.scheduled, [PENDING])
    scheduler._preempt_youngest()
    assert scheduler.waiting_ids == ("a",)
    assert sequence.reveal(3, 0)
    scheduler.stop(sequence)
    assert scheduler.waiting_ids == ()
    assert scheduler.update(Rows.of(()), ()) == [sequence]
    assert not scheduler.is_live("a")
    scheduler.check_integrity()


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    config = EngineConfig(max_num_seqs=2, block_size=SIZE, num_blocks=6, prefix_caching=True)
    scheduler = Scheduler(LIMITS, config)
    old, young = (
        scheduler.add(Request(name, prompt, 6))
        for name, prompt in (("old", (1, 2, 3)), ("young", (4, 5, 6)))
    )
    contexts = []
    while scheduler.running or scheduler.waiting:
        plan = scheduler.schedule()
        contexts += [
            each.context_len for each in plan.scheduled if each.sequence.request_id in plan.admitted
        ]
        scheduler.update(plan.scheduled, [7 for each in plan.scheduled if each.is_sampled])
    assert len(contexts) == 3, "one was preempted and came back"
    assert contexts[2] > 0
    assert old.finish_reason is young.finish_reason is FinishReason.LENGTH


# ---- lanes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [None, 64])
def test_a_sequence_stays_in_its_lane_while_there_is_room(num_blocks: int | None) -> None:
    """So that a CPU reads it as one view, whoever has come and gone beside it."""
    scheduler = Scheduler(LIMITS, EngineConfig(max_num_seqs=4, block_size=SIZE, num_blocks=num_blocks))
    for number in range(12):
        scheduler.add(Request(f"r{number}", tuple(range(1 + number % 5)), 2 + number % 4))
    while scheduler.running or scheduler.waiting:
        plan = scheduler.schedule()
        for each in scheduler.running:
            assert each.block_table == [each.lane + 4 * i for i in range(len(each.block_table))]
        scheduler.update(plan.scheduled, [7] * len(plan.scheduled))


def test_a_pool_too_narrow_for_lanes_serves_all_the_same() -> None:
    """Seven blocks in four lanes: the last column is not whole, and one sequence needs them all."""
    scheduler = Scheduler(LIMITS, EngineConfig(max_num_seqs=4, block_size=SIZE, num_blocks=7))
    only = scheduler.add(Request("only", tuple(range(14)), 1))
    plan = scheduler.schedule()
    assert sorted(only.block_table) == list(range(7))
    scheduler.update(plan.scheduled, [1])
    assert scheduler.blocks.num_free_blocks == 7


# ---- cost ----------------------------------------------------------------------------------------


def num_calls(scheduler: Scheduler) -> int:
    """Of functions, Python's and C's, in one step."""
    events = 0

    def count(*_: object) -> None:
        nonlocal events
        events += 1

    sys.setprofile(count)
    try:
        plan = scheduler.schedule()
        scheduler.update(plan.scheduled, [7 for each in plan.scheduled if each.is_sampled])
    finally:
        sys.setprofile(None)
    return events


class Untouchable:
    """Stands in the queue and must be left alone."""

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


def test_nothing_is_kept_of_a_request_that_is_gone() -> None:
    scheduler = Scheduler(LIMITS, EngineConfig(max_num_seqs=2, block_size=SIZE, num_blocks=8))
    made = [scheduler.add(Request(f"r{number}", (1, 2, 3), 2)) for number in range(6)]
    scheduler.schedule()
    scheduler.abort("r0")
    scheduler.abort("r5")
    while scheduler.running or scheduler.waiting:
        plan = scheduler.schedule()
        scheduler.update(plan.scheduled, [7] * len(plan.scheduled))
        del plan
    lonely = sequence(1)
    references = [sys.getrefcount(each) for each in made]
    assert references == [sys.getrefcount(lonely) + 1] * 6  # the list's


def test_the_ids_that_wait_are_listed_anew_only_when_the_queue_has_changed() -> None:
    scheduler = Scheduler(LIMITS, EngineConfig(max_num_seqs=1))
    for name in "abc":
        scheduler.add(Request(name, (1, 2), 3))
    plan = scheduler.schedule()
    listed = scheduler.waiting_ids
    assert listed == ("b", "c")
    scheduler.update(plan.scheduled, [7])
    scheduler.schedule()
    assert scheduler.waiting_ids is listed
    scheduler.abort("b")
    assert scheduler.waiting_ids == ("c",)


# ---- the trace -----------------------------------------------------------------------------------


def test_a_trace_log_is_a_sequence_of_step_records() -> None:
    log = TraceLog()
    wanted = []
    for step in range(4):
        rows = [("a", step, 1, True), ("b", 0, 3, False)]
        rest = (("c",), ("b",), (), ("d",), 5 + step, 9)
        log.append(tuple(zip(*rows, strict=True)), *rest)
        wanted.append(StepRecord(tuple(RowRecord(*row) for row in rows), *rest))
    assert len(log) == 4
    assert list(log) == wanted
    assert log[1:] == wanted[1:]
    assert log[::-2] == wanted[::-2]
    assert log[-1] == wanted[-1]
    assert log[2] is log[2], "made once"
    assert list(reversed(log)) == wanted[::-1]
    assert log.index(wanted[3]) == 3
    with pytest.raises(IndexError):
        log[4]
    log.append(((), (), (), ()), (), (), (), (), None, None)
    assert log[4] == StepRecord((), (), (), (), ())
