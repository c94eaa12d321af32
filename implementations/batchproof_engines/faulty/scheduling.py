"""Wrong schedules and block counts: barriers, wrong places in the queue, late ends, endless waits."""

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from batchproof.api import Request, StepRecord, TokenEvent
from batchproof.findings.causes import Cause
from batchproof.models.embedded import VARIANTS_MODEL
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.delayed import DelayedEngine
from batchproof_engines.ragged.engine import RaggedEngine, keys_and_values
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_engines.ragged_paged.scheduler import PagedScheduler


@planted(Promise.P9, Cause.SCHEDULING, "EricLBuehler/candle-vllm#156")
class BatchBarrier(Scheduler):
    """Newcomers are admitted only when all running requests have finished."""

    _is_open = True

    def schedule(self) -> SchedulerOutput:
        self._is_open = not self.running
        return super().schedule()

    def _has_free_slot(self) -> bool:
        return self._is_open and super()._has_free_slot()


@planted(Promise.P9, Cause.SCHEDULING, "vllm-project/vllm#33522")
class PreemptedGoesToTheBack(Scheduler):
    """A preempted request waits behind all that came after it instead of first in line."""

    def _preempt_youngest(self) -> str:
        request_id = super()._preempt_youngest()
        self.waiting.rotate(-1)
        return request_id


@planted(Promise.P9, Cause.SCHEDULING, "tenstorrent/vllm-tt-plugin#76")
class EosReadLateAndNotDeclared(DelayedEngine):
    """An EOS is read one step late, but the engine declares no delay."""

    scheduling_delay = 0


@planted(Promise.P9, Cause.SCHEDULING, "sgl-project/sglang#25078", shows_on=VARIANTS_MODEL)
class PrefillsOccupyNoAdapterSlot(Scheduler):
    """Newcomers are admitted beside the adapters that decode, whatever those name that prefill."""

    def _has_adapter_slot(self, sequence: Sequence) -> bool:
        running, self.running = self.running, [each for each in self.running if each.output_token_ids]
        try:
            return super()._has_adapter_slot(sequence)
        finally:
            self.running = running


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


class Miscounting(PagedScheduler):
    """Honest by itself; `lose` makes blocks neither owned nor free (a negative number frees too
    many)."""

    def lose(self, num_blocks: int) -> None:
        if self.blocks.limit is not None:
            self.blocks.limit -= num_blocks


@planted(Promise.P11, Cause.ACCOUNTING, "sgl-project/sglang-jax#994")
class LastBlockNeverFreed(Scheduler):
    """A last block that is exactly full when its request ends is never counted as free again."""

    _num_lost = 0

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        events, record = super().update(plan, token_ids)
        self._num_lost += sum(
            sequence.num_computed_tokens % self._config.block_size == 0
            for sequence, _ in plan.scheduled
            if sequence.finish_reason
        )
        return events, replace(record, num_free_blocks=self._num_free_blocks())

    def _num_free_blocks(self) -> int | None:
        free = super()._num_free_blocks()
        return None if free is None else free - self._num_lost


@planted(Promise.P11, Cause.ACCOUNTING, "sgl-project/sglang#30743")
class PoolOvercommitted(Scheduler):
    """A full pool blocks no request: more blocks are handed out than there are."""

    def _fits(self, plan: dict[Sequence, int]) -> bool:  # noqa: ARG002
        return True


@planted(Promise.P11, Cause.ACCOUNTING, "vllm-project/vllm#42571")
class TwoFinishersFreeABlockTwice(Miscounting):
    """When two requests finish in one step, one block goes into the free list twice."""

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        events, record = super().update(plan, token_ids)
        if len(record.finished) == 2:
            self.lose(-1)
        return events, replace(record, num_free_blocks=self._num_free_blocks())


@planted(Promise.P5, Cause.ACCOUNTING, "sgl-project/mini-sglang#142")
class IdenticalPromptsShareUncountedBlocks(RaggedEngine):
    """Equal prompts share their full blocks, and the first request to finish frees them under the
    others."""

    @torch.inference_mode()
    def _run_step(self) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        before = (*self._scheduler.running, *self._scheduler.waiting)
        result = super()._run_step()
        freed = {seq.request.prompt_token_ids for seq in before if seq.finish_reason is not None}
        for sequence in self._scheduler.running:
            prompt = sequence.request.prompt_token_ids
            if prompt in freed and sequence.output_token_ids:
                num_shared = len(prompt) // self._config.block_size * self._config.block_size
                for layer in self._caches[sequence.request_id].layers:
                    for each in keys_and_values(layer):
                        each[:, :, :num_shared] = 0.0
        return result
