"""The wrong token at a position, or keys and values written to, or read from, the wrong place."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import DynamicCache

from batchproof.api import FinishReason, Limits, RowRecord
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine, keys_and_values
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine


@planted(Promise.P1, Cause.ADDRESSING, "Wenyueh/MinivLLM#85")
class FirstKeyOfABlockIsLost(RaggedEngine):
    """A decode that opens a new block gets it one step late: its key and value are never stored."""

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        super()._scatter(plan, cache)
        for row in plan.rows:
            is_new_block = row.context_len and row.context_len % self._config.block_size == 0
            if is_new_block and row.query_len == 1:
                for layer in self._caches[row.request_id].layers:
                    for each in keys_and_values(layer):
                        each[:, :, -1] = 0.0


@planted(Promise.P1, Cause.ADDRESSING, "GeeeekExplorer/nano-vllm#258")
class BlockTableOneColumnShort(RaggedPagedEngine):
    """The block table lacks the column of the last, partial block of a context filled to its end."""

    _is_reading = False

    def _gather(self, plan: SchedulerOutput) -> DynamicCache:
        self._is_reading = True
        cache = super()._gather(plan)
        self._is_reading = False
        return cache

    def slots(self, table: list[int], positions: Iterable[int]) -> list[int]:
        size, longest = self._config.block_size, Limits.of(self._model, self._config).max_model_len
        last = max(1, longest // size) - 1 if self._is_reading else len(table) - 1
        near = [min(each // size, last) * size + each % size for each in positions]
        return super().slots(table, near)


@planted(Promise.P5, Cause.ADDRESSING, "vllm-project/vllm#13418")
class PadsAreWrittenToSlotZero(RaggedEngine):
    """Decodes are padded to a power of two, and the padding overwrites the oldest request's first
    key."""

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        super()._scatter(plan, cache)
        num_rows = len(plan.rows)
        is_decode = all(row.context_len and row.query_len == 1 for row in plan.rows)
        if is_decode and num_rows & (num_rows - 1):
            for layer in self._caches[plan.rows[0].request_id].layers:
                for each in keys_and_values(layer):
                    each[:, :, 0] = 0.0


@planted(Promise.P1, Cause.CHUNK, "tenstorrent/tt-xla#5830")
class EveryChunkIsSampled(Scheduler):
    """A token is taken after every chunk of a prompt, not only after the last."""

    def schedule(self) -> SchedulerOutput:
        plan = super().schedule()
        return replace(plan, rows=tuple(replace(row, is_sampled=True) for row in plan.rows))


@planted(Promise.P7, Cause.POSITION, "antonellof/ferrox#37")
class PositionsRestartInEachChunk(RaggedEngine):
    """Each chunk of a prompt counts its positions from 0 again."""

    def _row_tokens(self, sequence: Sequence, row: RowRecord) -> tuple[list[int], range]:
        fed, positions = super()._row_tokens(sequence, row)
        return fed, positions if row.query_len == 1 else range(row.query_len)


@planted(Promise.P1, Cause.FEED, "utensils/mold#1690")
class LastPromptTokenFedTwice(RaggedEngine):
    """The first decode is fed the prompt's last token again instead of the first output."""

    def _row_tokens(self, sequence: Sequence, row: RowRecord) -> tuple[list[int], range]:
        fed, positions = super()._row_tokens(sequence, row)
        prompt = sequence.request.prompt_token_ids
        if row.context_len == len(prompt):
            fed[0] = prompt[-1]
        return fed, positions


@planted(Promise.P5, Cause.FEED, "ggml-org/llama.cpp#17263")
class ReleasedSlotIsStillFed(RaggedEngine):
    """When a row leaves and none takes its place, later rows are fed the token of the row before
    them."""

    _chosen: tuple[int, ...] = ()  # by row of the last step

    @torch.inference_mode()
    def _forward(self, plan: SchedulerOutput) -> Tensor:
        logits = super()._forward(plan)
        self._chosen = tuple(logits.argmax(dim=-1).tolist())
        return logits

    def _packed_tokens(self, plan: SchedulerOutput) -> tuple[list[int], list[int]]:
        fed, positions = super()._packed_tokens(plan)
        is_smaller = bool(self._trace and self._trace[-1].finished and not plan.admitted)
        if is_smaller and all(row.query_len == 1 for row in plan.rows):
            fed = list(self._chosen[: len(fed)])
        return fed, positions


@dataclass(slots=True, eq=False)
class _Forgetful(Sequence):
    """A sequence that can keep outputs that are no longer among its tokens."""

    given: list[int] = field(default_factory=list)

    @property
    def output_token_ids(self) -> list[int]:
        return self.given + self.token_ids[len(self.request.prompt_token_ids) :]


@planted(Promise.P1, Cause.PREEMPTION, "PaddlePaddle/FastDeploy#3080")
class OnlyThePromptIsRecomputed(Scheduler):
    """After a preemption only the prompt is fed again; the outputs so far are kept, but not fed."""

    sequence_class = _Forgetful

    def _preempt_youngest(self) -> str:
        victim = self.running[-1]
        assert isinstance(victim, _Forgetful), "this scheduler makes no other sequences"
        victim.given = victim.output_token_ids
        del victim.token_ids[len(victim.request.prompt_token_ids) :]
        return super()._preempt_youngest()


@dataclass(slots=True, eq=False)
class _Counting(Sequence):
    """A sequence that counts the token in flight at each preemption as produced."""

    num_in_flight: int = 0

    def append(self, token_id: int) -> None:
        Sequence.append(self, token_id)  # a dataclass with slots is a new class: no bare super()
        num_counted = len(self.output_token_ids) + self.num_in_flight
        if self.finish_reason is None and num_counted >= self.request.max_new_tokens:
            self.finish_reason = FinishReason.LENGTH


@planted(Promise.P2, Cause.PREEMPTION, "NVIDIA/TensorRT-LLM#10943")
class EachPreemptionCostsAToken(Scheduler):
    """The token in flight at a preemption is counted but never kept, so the answer ends too early."""

    sequence_class = _Counting

    def _preempt_youngest(self) -> str:
        victim = self.running[-1]
        assert isinstance(victim, _Counting), "this scheduler makes no other sequences"
        victim.num_in_flight += 1
        return super()._preempt_youngest()


@planted(Promise.P14, Cause.PREEMPTION, "vllm-project/vllm#48245")
class LastTokenIsTakenBackAndGivenAgain(Scheduler):
    """A preempted request loses its last token and produces it again: right, but streamed twice."""

    def _preempt_youngest(self) -> str:
        if self.running[-1].output_token_ids:
            self.running[-1].token_ids.pop()
        return super()._preempt_youngest()
