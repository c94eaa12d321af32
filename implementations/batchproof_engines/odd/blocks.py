"""Unusual ways to own blocks: taken early, held in reserve, taken from an unexpected sequence, and
shared or forgotten otherwise."""

from collections import deque
from dataclasses import replace

from batchproof.api import Capability, Request
from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_engines.ragged_paged.blocks import BlockManager


@odd
class ReservesForLife(Scheduler):
    """A request takes the blocks of its whole life when it is admitted, so no request is ever
    preempted."""

    lacks = frozenset({Capability.PREEMPTION})

    def _owned(self, sequence: Sequence, num_new: int) -> int:  # noqa: ARG002
        return self._whole_life(sequence.request)


@odd
class ReservesOneAhead(Scheduler):
    """The block of the token after the next one is taken a step early."""

    def _owned(self, sequence: Sequence, num_new: int) -> int:
        return min(super()._owned(sequence, num_new + 1), self._whole_life(sequence.request))


@odd
class KeepsABlockFree(Scheduler):
    """One block stays free as long as more than one request runs, unless the pool holds the whole lives
    of all."""

    def _fits(self, plan: dict[Sequence, int]) -> bool:
        total, live = self._config.num_blocks, {*self.running, *plan}
        if total is None or len(live) == 1:
            return super()._fits(plan)
        lives = sum(self._whole_life(each.request) for each in live)
        return lives <= total or self._num_used(plan) < total


@odd
class PreemptsTheSecondOldest(Scheduler):
    """When the pool may run full, the second oldest sequence is preempted, and waits where its arrival
    puts it; chunks count as whole prompts."""

    _is_crowded = False
    _arrived: tuple[Sequence, ...] = ()

    def add(self, request: Request) -> Sequence:
        sequence = super().add(request)
        self._arrived = (*(each for each in self._arrived if each.finish_reason is None), sequence)
        return sequence

    def schedule(self) -> SchedulerOutput:
        victims = []
        while not self._fits({each: each.num_uncomputed_tokens for each in self.running}):
            victims.append(self._preempt_youngest())
        self._is_crowded = bool(victims)
        plan = super().schedule()
        return replace(plan, preempted=(*victims, *plan.preempted))

    def _preempt_youngest(self) -> str:
        self.running.append(self.running.pop(1 % len(self.running)))
        name = super()._preempt_youngest()
        self.waiting = deque(sorted(self.waiting, key=self._arrived.index))
        return name

    def _has_free_slot(self) -> bool:
        return not self._is_crowded and super()._has_free_slot()


@odd
class TakesTheHighestBlocks(BlockManager):
    """The free block with the highest id is taken first, so block tables run backwards."""

    def take(self) -> int:
        self.blank = deque(sorted(self.blank, reverse=True))
        return super().take()


@odd
class TakesWhatIsCachedFirst(BlockManager):
    """The free block that was released last is taken first, even if a prefix cache remembers it and
    others are blank."""

    def take(self) -> int:
        if self.cached:
            block, _ = self.cached.popitem()
            self.evict(block)
            return block
        return self.blank.pop() if self.blank else super().take()


@odd
class TakesOverHalfOfAPrefix(BlockManager):
    """Of the blocks that a prompt could share it takes over the first half, and computes the others
    again."""

    def match(self, sequence: Sequence) -> list[int]:
        hits = super().match(sequence)
        return hits[: (len(hits) + 1) // 2]


@odd
class GrowsInLeaps(BlockManager):
    """A pool without a limit grows by a hundred blocks at a time."""

    def take(self) -> int:
        if self.limit is None and not self.blank and not self.cached:
            self.blank.extend(range(self.num_blocks, self.num_blocks + 100))
            self.num_blocks += 100
        return super().take()
