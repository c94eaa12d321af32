"""Wrong schedules: barriers, lost steps, wrong places in the queue, idle slots."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import pairwise

from batchproof.api import (
    EngineConfig,
    Limits,
    RowRecord,
    StepRecord,
    TokenEvent,
)
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput


def _without(plan: SchedulerOutput, dropped: set[str]) -> SchedulerOutput:
    """Returns the plan without the rows of these requests, which keep their slots."""
    return replace(
        plan,
        scheduled=tuple(pair for pair in plan.scheduled if pair[0].request_id not in dropped),
        rows=tuple(row for row in plan.rows if row.request_id not in dropped),
    )


@planted(Promise.P9, Cause.SCHEDULING, "EricLBuehler/candle-vllm#156")
class BatchBarrier(Scheduler):
    """Newcomers are admitted only when all running requests have finished."""

    _is_open = True

    def schedule(self) -> SchedulerOutput:
        """Plans a step; requests are admitted only if none was running before."""
        self._is_open = not self.running
        return super().schedule()

    def _has_free_slot(self) -> bool:
        return self._is_open and super()._has_free_slot()


@planted(Promise.P9, Cause.SCHEDULING, "HabanaAI/vllm-fork#2247")
class DecodeLosesAStep(Scheduler):
    """When a request finishes, the one after it in the running list is skipped in the next step."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._skipped: set[str] = set()

    def schedule(self) -> SchedulerOutput:
        """Plans a step without the requests marked by the last `update`."""
        skipped, self._skipped = self._skipped, set()
        return _without(super().schedule(), skipped)

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        """Records the step, and marks the requests that ran directly after a finished one."""
        neighbours = list(pairwise(seq.request_id for seq in self.running))
        events, record = super().update(plan, token_ids)
        self._skipped = {behind for ahead, behind in neighbours if ahead in record.finished}
        return events, record


@planted(Promise.P9, Cause.SCHEDULING, "ddalcu/mlx-serve#205")
class PrefillStallsDecodes(Scheduler):
    """While a prompt is fed, no request decodes: prefill and decode never share a forward pass."""

    def schedule(self) -> SchedulerOutput:
        """Plans a step, without its decodes if it feeds a prompt."""
        plan = super().schedule()
        if all(self._is_decode(row) for row in plan.rows):
            return plan
        return _without(plan, {row.request_id for row in plan.rows if self._is_decode(row)})

    def _is_decode(self, row: RowRecord) -> bool:
        return row.context_len > 0 and row.query_len == 1


@planted(Promise.P9, Cause.SCHEDULING, "vllm-project/vllm#33522")
class PreemptedGoesToTheBack(Scheduler):
    """A preempted request waits behind all that came after it instead of first in line."""

    def _preempt_youngest(self) -> str:
        request_id = super()._preempt_youngest()
        self.waiting.rotate(-1)
        return request_id


@planted(Promise.P9, Cause.SCHEDULING, "sgl-project/sglang#22518")
class SlotIdlesAfterAFullBatch(Scheduler):
    """The flag of a full batch is cleared a step late: a freed slot stays empty for one step."""

    _was_full = False

    def schedule(self) -> SchedulerOutput:
        """Plans a step, and remembers whether it fills all slots."""
        plan = super().schedule()
        self._was_full = len(self.running) == self._config.max_num_seqs
        return plan

    def _has_free_slot(self) -> bool:
        return not self._was_full and super()._has_free_slot()


@planted(Promise.P9, Cause.SCHEDULING, "jundot/omlx#3726")
class LastChunkClosesAdmission(Scheduler):
    """No request is admitted beside a later chunk of a prompt, though it leaves slots and budget."""

    _is_open = True

    def schedule(self) -> SchedulerOutput:
        """Plans a step; requests are admitted only if all running prompts are complete."""
        self._is_open = all(
            seq.num_computed_tokens >= len(seq.request.prompt_token_ids) for seq in self.running
        )
        return super().schedule()

    def _has_free_slot(self) -> bool:
        return self._is_open and super()._has_free_slot()


@planted(Promise.P9, Cause.SCHEDULING, "vllm-project/vllm#41951")
class HeadThatDoesNotFitIsOvertaken(Scheduler):
    """A smaller request goes first while the head of the queue waits for blocks."""

    def schedule(self) -> SchedulerOutput:
        """Plans a step after moving the first request that fits to the head of the queue."""
        fitting = [seq for seq in self.waiting if self._fits({seq: seq.num_uncomputed_tokens})]
        if fitting and fitting[0] is not self.waiting[0]:
            self.waiting.remove(fitting[0])
            self.waiting.appendleft(fitting[0])
        return super().schedule()


@planted(Promise.P9, Cause.SCHEDULING, "sgl-project/sglang#23788")
class DecodesAreNotInTheBudget(Scheduler):
    """`max_num_batched_tokens` limits the prompts alone: the decodes of the step are not counted."""

    def schedule(self) -> SchedulerOutput:
        """Plans a step with the budget raised by the number of decodes."""
        config = self._config
        num_decodes = sum(seq.num_uncomputed_tokens == 1 for seq in self.running)
        budget = config.max_num_batched_tokens + num_decodes
        self._config = replace(config, max_num_batched_tokens=budget)
        try:
            return super().schedule()
        finally:
            self._config = config
