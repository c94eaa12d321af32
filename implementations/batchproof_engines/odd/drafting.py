"""Unusual ways to draft: for whom, when, and how many of the right ones are kept."""

from transformers import PreTrainedModel

from batchproof.api import Capability, EngineConfig
from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.scheduler import SchedulerOutput, Sequence
from batchproof_engines.ragged_paged.drafting import Speculator
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine
from batchproof_engines.ragged_paged.scheduler import PagedScheduler


@odd
class DraftsEveryOtherStep(Speculator):
    """Drafts are made in every other step only."""

    _is_pausing = True

    def drafted(self, plan: SchedulerOutput, scheduler: PagedScheduler) -> SchedulerOutput:
        self._is_pausing = not self._is_pausing
        return plan if self._is_pausing else super().drafted(plan, scheduler)


@odd
class DraftsForTheLongestAlone(PagedScheduler):
    """In a step only the longest of those that may have drafts gets some."""

    def room_for_drafts(self, plan: SchedulerOutput, most: int) -> list[int]:
        room = super().room_for_drafts(plan, most)
        places = [place for place, num in enumerate(room) if num]
        longest = max(places, key=lambda place: plan.rows[place].context_len, default=-1)
        return [num if place == longest else 0 for place, num in enumerate(room)]


@odd
class DraftsUnasked(RaggedPagedEngine):
    """Looks up two drafts in each sequence although nobody asked for any."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._speculator = self._speculator or self.speculator(None, 2)


@odd
class KeepsOneDraftAStep(Speculator):
    """Of the right drafts of a row all but the first are drafted anew."""

    lacks = frozenset({Capability.EXACT_DRAFTS})

    def num_right(self, sequence: Sequence, drafts: list[int], choices: list[int]) -> int:
        return min(2, super().num_right(sequence, drafts, choices))
