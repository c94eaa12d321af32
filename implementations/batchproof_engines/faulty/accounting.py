"""Block counts that do not add up."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from batchproof.api import (
    EngineConfig,
    Limits,
    Request,
    StepRecord,
    TokenEvent,
)
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.addressing import keys_and_values
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.delayed import (
    DelayedEngine,
    DelayedScheduler,
)
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence


class Miscounting(Scheduler):
    """Honest by itself; `_lose` makes blocks neither owned nor free (a negative number frees too
    many)."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._ghost = Sequence(Request("", (), 0), [])

    def _lose(self, num_blocks: int) -> None:
        self._ghost.num_computed_tokens += num_blocks * self._config.block_size

    def _fits(self, plan: dict[Sequence, int]) -> bool:
        return super()._fits({**plan, self._ghost: 0})

    def _num_free_blocks(self) -> int | None:
        free = super()._num_free_blocks()
        return None if free is None else free - self._num_blocks(self._ghost.num_computed_tokens)


@planted(Promise.P11, Cause.ACCOUNTING, "sgl-project/sglang-jax#994")
class LastBlockNeverFreed(Scheduler):
    """A last block that is exactly full when its request ends is never counted as free again."""

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
    """A full pool blocks no request: more blocks are handed out than there are."""

    def _fits(self, plan: dict[Sequence, int]) -> bool:  # noqa: ARG002
        return True


@planted(Promise.P11, Cause.ACCOUNTING, "vllm-project/vllm#42571")
class TwoFinishersFreeABlockTwice(Miscounting):
    """When two requests finish in one step, one block goes into the free list twice."""

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        events, record = super().update(plan, token_ids)
        if len(record.finished) == 2:
            self._lose(-1)
        return events, replace(record, num_free_blocks=self._num_free_blocks())


class _HoldsBlocks(DelayedScheduler):
    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        late = self._unread()
        held = {seq.request_id: self._num_blocks(seq.num_computed_tokens + 1) for seq in late}
        events, record = super().update(plan, token_ids)
        free = record.num_free_blocks
        if free is not None:
            free -= sum(held.get(each, 0) for each in record.finished)
        return events, replace(record, num_free_blocks=free)


@planted(Promise.P11, Cause.ACCOUNTING, "vllm-project/vllm#45357")
class BlocksHeldBehindALateEnd(DelayedEngine):
    """Under a declared delay, the blocks of a late end are given back a step after the request has
    finished."""

    scheduler_class = _HoldsBlocks


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
