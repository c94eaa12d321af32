"""Block counts that do not add up."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from harness.api import EngineConfig, Limits, StepRecord, TokenEvent
from harness.causes import Cause
from harness.promises import Promise
from implementations.faulty.fault import planted
from implementations.ragged_scheduler import Scheduler, SchedulerOutput, Sequence


@planted(Promise.P11, Cause.ACCOUNTING, "sgl-project/sglang-jax#994")
class LastBlockNeverFreed(Scheduler):
    """A last block that is exactly full when its request ends is never counted free again."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._num_lost = 0

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        events, record = super().update(plan, token_ids)
        self._num_lost += sum(
            seq.num_computed_tokens % self._config.block_size == 0
            for seq, _ in plan.scheduled
            if seq.finish_reason is not None
        )
        return events, replace(record, num_free_blocks=self._num_free_blocks())

    def _num_free_blocks(self) -> int | None:
        free = super()._num_free_blocks()
        return None if free is None else free - self._num_lost


@planted(Promise.P11, Cause.ACCOUNTING, "sgl-project/sglang#30743")
class PoolOvercommitted(Scheduler):
    """A full pool stops nobody: more blocks are handed out than there are."""

    def _fits(self, plan: dict[Sequence, int]) -> bool:  # noqa: ARG002
        return True
