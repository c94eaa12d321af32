"""Prompts fed in chunks: what a chunk boundary loses, duplicates or confuses."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import accumulate

from torch import Tensor
from transformers import DynamicCache

from batchproof.api import RowRecord
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.addressing import keys_and_values
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput


@planted(Promise.P1, Cause.CHUNK, "tenstorrent/tt-xla#5830")
class EveryChunkIsSampled(Scheduler):
    """A token is taken after every chunk of a prompt, not only after the last."""

    def schedule(self) -> SchedulerOutput:
        """Plans a step in which every row is sampled."""
        plan = super().schedule()
        return replace(plan, rows=tuple(replace(row, is_sampled=True) for row in plan.rows))


@planted(Promise.P1, Cause.CHUNK, "vllm-project/vllm#7380")
class LastKeyOfAnAlignedPromptIsLost(RaggedEngine):
    """The last chunk of a prompt of exactly k blocks does not store its last key and value."""

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        super()._scatter(plan, cache)
        for (sequence, num_new), row in zip(plan.scheduled, plan.rows, strict=True):
            num_prompt_tokens = len(sequence.request.prompt_token_ids)
            is_last_chunk = 0 < row.context_len < num_prompt_tokens == row.context_len + num_new
            if is_last_chunk and num_prompt_tokens % self._config.block_size == 0:
                for layer in self._caches[row.request_id].layers:
                    for each in keys_and_values(layer):
                        each[:, :, -1] = 0.0


@planted(Promise.P1, Cause.CHUNK, "lablup/mlxcel#183")
class OneTokenChunkTakenForADecode(RaggedEngine):
    """A last chunk of one token counts as a decode: it is fed an output, but there is none yet."""

    def _packed_tokens(self, plan: SchedulerOutput) -> tuple[list[int], list[int]]:
        fed, positions = super()._packed_tokens(plan)
        ends = accumulate(row.query_len for row in plan.rows)
        for (sequence, num_new), row, end in zip(plan.scheduled, plan.rows, ends, strict=True):
            if num_new == 1 and row.context_len and not sequence.output_token_ids:
                fed[end - 1] = 0
        return fed, positions


@planted(Promise.P1, Cause.CHUNK, "RBLN-SW/vllm-rbln#499")
class ChunksStartAtMultiplesOfTheBudget(RaggedEngine):
    """After a chunk cut short by its neighbours, the next starts where a full one would have ended."""

    def _packed_tokens(self, plan: SchedulerOutput) -> tuple[list[int], list[int]]:
        fed, positions = super()._packed_tokens(plan)
        ends = accumulate(row.query_len for row in plan.rows)
        for (sequence, num_new), row, end in zip(plan.scheduled, plan.rows, ends, strict=True):
            prompt = sequence.request.prompt_token_ids
            if row.context_len > 0 and row.context_len + num_new <= len(prompt):
                start = row.context_len + -row.context_len % self._config.max_num_batched_tokens
                last = len(prompt) - 1
                fed[end - num_new : end] = (prompt[min(start + i, last)] for i in range(num_new))
        return fed, positions


@planted(Promise.P5, Cause.LEAK, "vllm-project/vllm#15492")
class EmptyContextIsMerged(RaggedEngine):
    """A new prompt beside a later chunk also attends to the first key of that chunk's context."""

    def _additive_mask(self, rows: Seq[RowRecord]) -> Tensor | dict[str, Tensor]:
        bias = super()._additive_mask(rows)
        later = [i for i, row in enumerate(rows) if row.context_len and row.query_len > 1]
        if not later:
            return bias
        key = sum(row.context_len for row in rows[: later[0]])
        for row, end in zip(rows, accumulate(row.query_len for row in rows), strict=True):
            for each in bias.values() if isinstance(bias, dict) else [bias]:
                if row.context_len == 0:
                    each[..., end - row.query_len : end, key] = 0.0
        return bias
