"""Unusual ways to serve low-rank adapters: one after the other, without prefixes, out of order."""

import torch
from torch import Tensor

from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.scheduler import SchedulerOutput, Sequence
from batchproof_engines.ragged_paged.blocks import BlockManager
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine
from batchproof_engines.ragged_paged.scheduler import PagedScheduler


@odd
class RunsAdaptersApart(RaggedPagedEngine):
    """The rows of each adapter run in a pass of their own, and those of the model alone in another."""

    def _packed_logits(self, plan: SchedulerOutput) -> Tensor:
        by_adapter: dict[str | None, list[int]] = {}
        for place, (sequence, _) in enumerate(plan.scheduled):
            by_adapter.setdefault(sequence.request.adapter, []).append(place)
        of_rows: dict[int, Tensor] = {}
        for places in by_adapter.values():
            scheduled = tuple(plan.scheduled[each] for each in places)
            rows = tuple(plan.rows[each] for each in places)
            logits = super()._packed_logits(SchedulerOutput(scheduled, rows, (), ()))
            of_rows.update(zip(places, logits.split([row.query_len for row in rows]), strict=True))
        return torch.cat([of_rows[place] for place in range(len(plan.rows))])


@odd
class KeepsNoPrefixUnderAdapters(BlockManager):
    """Only what the model alone has computed is kept in the prefix cache."""

    def match(self, sequence: Sequence) -> list[int]:
        return [] if sequence.root else super().match(sequence)

    def publish(self, sequence: Sequence) -> None:
        if not sequence.root:
            super().publish(sequence)


@odd
class LetsOthersOvertake(PagedScheduler):
    """While the adapter of a request has to wait, requests behind it overtake."""

    def _admit_first(self, plan: dict[Sequence, int]) -> bool:
        before = self.waiting.copy()
        able = next((each for each in before if self._has_adapter_slot(each)), before[0])
        self.waiting.remove(able)
        self.waiting.appendleft(able)
        is_admitted = super()._admit_first(plan)
        if not is_admitted:
            self.waiting = before
        return is_admitted
