"""Unusual schedules: late, out of order, in small chunks. Most do without the capability SCHEDULING."""

import random
from dataclasses import replace
from typing import ClassVar

from batchproof.api import Capability, TokenEvent
from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence

CHUNK = 3  # tokens of one prompt in one step


class AtWill(Scheduler):
    """A scheduler that does not promise which request runs next."""

    lacks: ClassVar[frozenset[Capability]] = frozenset({Capability.SCHEDULING})


@odd
class NibblesAtPrompts(Scheduler):
    """At most 3 tokens of a prompt are fed in one step, however large the token budget is."""

    def _num_new(self, sequence: Sequence, budget: int) -> int:
        return min(CHUNK, super()._num_new(sequence, budget))


@odd
class ShufflesTheQueue(AtWill):
    """The queue is shuffled before each step, by a generator of its own with a fixed seed."""

    def schedule(self) -> SchedulerOutput:
        random.Random(len(self.waiting)).shuffle(self.waiting)
        return super().schedule()


@odd
class OneAtATime(AtWill):
    """Only one slot is used, whatever `max_num_seqs` allows."""

    lacks = AtWill.lacks | {Capability.PREEMPTION}

    def _has_free_slot(self) -> bool:
        return not self.running


@odd
class AdmitsInWaves(AtWill):
    """No request is admitted until all running ones have finished: a barrier, and no claim that there
    is none."""

    lacks = AtWill.lacks | {Capability.PREEMPTION}  # a wave may never fill the pool
    _is_open = True

    def schedule(self) -> SchedulerOutput:
        self._is_open = not self.running
        return super().schedule()

    def _has_free_slot(self) -> bool:
        return self._is_open and super()._has_free_slot()


@odd
class PrefillsFirst(AtWill):
    """While a prompt is fed, the decodes wait: the two never share a forward pass."""

    def schedule(self) -> SchedulerOutput:
        plan = super().schedule()
        prefills = [
            (pair, row)
            for pair, row in zip(plan.scheduled, plan.rows, strict=True)
            if pair[0].num_uncomputed_tokens > 1 or not pair[0].output_token_ids
        ]
        if not prefills:
            return plan
        scheduled, rows = zip(*prefills, strict=True)
        return replace(plan, scheduled=scheduled, rows=rows)


@odd
class IdlesEveryOtherStep(RaggedEngine):
    """Every other step feeds nothing and returns nothing."""

    capabilities = RaggedEngine.capabilities - {Capability.SCHEDULING}
    _is_idle = True

    def step(self) -> list[TokenEvent]:
        self._is_idle = not self._is_idle
        return [] if self._is_idle else super().step()


@odd
class TwoPassesAStep(RaggedEngine):
    """One step makes two forward passes, so a request may get two tokens in it."""

    def step(self) -> list[TokenEvent]:
        return super().step() + super().step()
