"""Wrong schedules: barriers, lost steps, wrong places in the queue, late ends, waits that never end."""

from __future__ import annotations

from dataclasses import replace

from batchproof.api import (
    Request,
    RowRecord,
)
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.delayed import (
    DelayedEngine,
    DelayedScheduler,
    DelayedSequence,
)
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput


@planted(Promise.P9, Cause.SCHEDULING, "EricLBuehler/candle-vllm#156")
class BatchBarrier(Scheduler):
    """Newcomers are admitted only when all running requests have finished."""

    _is_open = True

    def schedule(self) -> SchedulerOutput:
        self._is_open = not self.running
        return super().schedule()

    def _has_free_slot(self) -> bool:
        return self._is_open and super()._has_free_slot()


def _without(plan: SchedulerOutput, dropped: set[str]) -> SchedulerOutput:
    """Returns the plan without the rows of these requests, which keep their slots."""
    return replace(
        plan,
        scheduled=tuple(pair for pair in plan.scheduled if pair[0].request_id not in dropped),
        rows=tuple(row for row in plan.rows if row.request_id not in dropped),
    )


@planted(Promise.P9, Cause.SCHEDULING, "ddalcu/mlx-serve#205")
class PrefillStallsDecodes(Scheduler):
    """While a prompt is fed, no request decodes: prefill and decode never share a forward pass."""

    def schedule(self) -> SchedulerOutput:
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


@planted(Promise.P9, Cause.SCHEDULING, "jundot/omlx#3726")
class LastChunkClosesAdmission(Scheduler):
    """No request is admitted beside a later chunk of a prompt, though it leaves slots and budget."""

    _is_open = True

    def schedule(self) -> SchedulerOutput:
        self._is_open = all(
            seq.num_computed_tokens >= len(seq.request.prompt_token_ids) for seq in self.running
        )
        return super().schedule()

    def _has_free_slot(self) -> bool:
        return self._is_open and super()._has_free_slot()


@planted(Promise.P9, Cause.SCHEDULING, "sgl-project/sglang#23788")
class DecodesAreNotInTheBudget(Scheduler):
    """`max_num_batched_tokens` limits the prompts alone: the decodes of the step are not counted."""

    def schedule(self) -> SchedulerOutput:
        config = self._config
        num_decodes = sum(seq.num_uncomputed_tokens == 1 for seq in self.running)
        budget = config.max_num_batched_tokens + num_decodes
        self._config = replace(config, max_num_batched_tokens=budget)
        try:
            return super().schedule()
        finally:
            self._config = config


@planted(Promise.P9, Cause.SCHEDULING, "tenstorrent/vllm-tt-plugin#76")
class EosReadLateAndNotDeclared(DelayedEngine):
    """An EOS is read one step late, but the engine declares no delay."""

    scheduling_delay = 0


class _CapReadLate(DelayedSequence):
    def is_unforeseen(self) -> bool:
        return self.finish_reason is not None

    @property
    def num_uncomputed_tokens(self) -> int:
        num_known = len(self.request.prompt_token_ids) + self.request.max_new_tokens
        return min(super().num_uncomputed_tokens, num_known - self.num_computed_tokens)


class _CapsReadLate(DelayedScheduler):
    sequence_class = _CapReadLate


@planted(Promise.P9, Cause.SCHEDULING, "vllm-project/vllm#27922")
class CapReadLate(DelayedEngine):
    """Under a declared delay, an end at the cap, which is known beforehand, is late as well."""

    scheduler_class = _CapsReadLate


@planted(Promise.P10, Cause.LIVENESS, "vllm-project/vllm#35541")
class OversizedRequestBlocksTheQueue(Scheduler):
    """A request that could never fit into the pool is queued all the same, and blocks the queue for
    good."""

    def _pool_refusal(self, request: Request) -> str | None:  # noqa: ARG002
        return None


@planted(Promise.P10, Cause.LIVENESS, "sgl-project/sglang#23006")
class OnlySlotWaitsForItself(Scheduler):
    """With a single slot, a prompt fed in chunks counts itself as the tenant it has to wait for."""

    def schedule(self) -> SchedulerOutput:
        if self._config.max_num_seqs == 1 and self.running:
            tenant = self.running[0]
            if tenant.num_computed_tokens < len(tenant.request.prompt_token_ids):
                return SchedulerOutput((), (), (), ())
        return super().schedule()
