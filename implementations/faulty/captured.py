"""Decode steps that are captured once and replayed, and tokens that the host reads a step late."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from harness.api import FinishReason
from harness.causes import Cause
from harness.promises import Promise
from implementations.faulty.fault import planted
from implementations.paged.batch import Ints, RaggedBatch
from implementations.paged.blocks import BlockPool
from implementations.paged.engine import Chosen, PagedEngine
from implementations.paged.graphs import DecodeGraphs, LastTokens
from implementations.paged.runner import Flight, ModelRunner
from implementations.paged.scheduler import Scheduled, Scheduler, SchedulerOutput
from implementations.paged.sequence import Sequence


@planted(Promise.P1, Cause.PADDING, "m0at/rvllm#32", backend="blocks", graphs=True)
class PaddingRowsWriteToALiveBlock(DecodeGraphs):
    """The padding rows of a captured step write their keys to block 0, which may be somebody's."""

    def _padding(self, bucket: int) -> Ints:
        inputs = super()._padding(bucket)
        inputs[2] = self._pool.stored_slots(inputs[2])
        return inputs


@planted(
    Promise.P1,
    Cause.PADDING,
    "NVIDIA/TensorRT-LLM#3839",
    backend="blocks",
    graphs=True,
    overlap=True,
)
class PaddingRowsChooseForALiveLane(DecodeGraphs):
    """What the padding rows of a captured step choose becomes the next token of lane 0."""

    def _padding(self, bucket: int) -> Ints:
        inputs = super()._padding(bucket)
        inputs[3] = 0
        return inputs


@planted(Promise.P5, Cause.STALE, "vllm-project/vllm#44868", backend="blocks", graphs=True)
class LanesOfTheFirstReplay(DecodeGraphs):
    """A captured step reads the tables of those who were in it when it was replayed first."""

    def __init__(self, *pieces: Any) -> None:
        super().__init__(*pieces)
        self._first: dict[int, Ints] = {}

    def _inputs(self, batch: RaggedBatch, bucket: int) -> Ints:
        inputs = super()._inputs(batch, bucket)
        inputs[3] = self._first.setdefault(bucket, inputs[3].copy())
        return inputs


@planted(Promise.P1, Cause.ADDRESSING, "slwang-ustc/nano-vllm-v1#3", backend="blocks", graphs=True)
class CapturedAColumnTooNarrow(BlockPool):
    """A captured step has no column for a block that is opened in it."""

    def graph_columns(self, seq_len: int) -> int:
        return super().graph_columns(seq_len - 1)


@planted(Promise.P5, Cause.FEED, "vllm-project/vllm-gaudi#642", overlap=True)
class NewestTokenByRow(LastTokens):
    """Tokens that the host has not read are looked up by their row in the batch, not by their lane."""

    def fill_in(self, token_ids: Tensor, lanes: Tensor) -> Tensor:
        return super().fill_in(token_ids, torch.arange(len(lanes), device=lanes.device))


@planted(Promise.P8, Cause.STALE, "tenstorrent/vllm-tt-plugin#57", overlap=True)
class FormerTenantsTokenIsFed(ModelRunner):
    """Behind its prompt a newcomer is fed what the lane's former tenant chose last."""

    def launch(self, batch: RaggedBatch) -> Flight:
        newest = self._last_tokens._ids
        lanes = torch.from_numpy(batch.lanes[batch.num_decodes :]).to(newest.device)
        former = newest[lanes]
        flight = super().launch(batch)
        newest[lanes] = torch.where(former > 0, former, newest[lanes])
        return flight


class _Heedless(SchedulerOutput):
    """A plan whose tokens nobody waits for."""

    __slots__ = ()

    @property
    def may_stop(self) -> bool:
        return False


@planted(Promise.P3, Cause.EOS, "vllm-project/vllm-omni#3532", overlap=True)
class StopIsSeenAStepLate(Scheduler):
    """When an EOS is read the next step is under way, and the token it chooses is delivered too."""

    def schedule(self) -> SchedulerOutput:
        plan = super().schedule()
        return _Heedless(plan.scheduled, plan.admitted, plan.preempted, plan.freed_blocks)

    def update(self, scheduled: Seq[Scheduled], token_ids: Seq[int]) -> list[Sequence]:
        done = super().update(scheduled, token_ids)
        for each in scheduled:
            sequence = each.sequence
            read = set(sequence.output_token_ids[:-1])
            if sequence not in done and read & sequence.request.eos_token_ids:
                sequence.finish_reason = FinishReason.STOP
                self.running.remove(sequence)
                del self._live[sequence.request_id]
                self._release(sequence)
                done.append(sequence)
        return done


@planted(Promise.P1, Cause.PREEMPTION, "vllm-project/vllm#38624", overlap=True)
class TokenInFlightStaysAPlaceholder(PagedEngine):
    """The token in flight at a preemption is streamed, but the request goes on with token 0."""

    def _land(self) -> list[Chosen]:
        chosen = super()._land()
        for each in chosen:
            if each.sequence in self._scheduler.waiting:
                each.sequence.token_ids[-1] = 0
        return chosen


@planted(Promise.P12, Cause.INPUT, "smg-project/smg#2426", overlap=True)
class IdIsFreeWhileItsTokenFlies(PagedEngine):
    """An id may be used again before the last token of its request is delivered."""

    def _is_live(self, request_id: str) -> bool:
        return self._scheduler.is_live(request_id)
