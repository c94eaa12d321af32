"""Recurrent states that are lost, doubled, late or rounded on their way through a sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.recurrent import (
    BOTH,
    CONVOLUTION,
    RECURRENCE,
    cleared,
    copied,
    planted_in_states,
    states,
)
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.cached_runner import CachedRunner
from batchproof_paged.row_caches import RowCaches
from batchproof_paged.rows import Rows, Scheduled

KERNEL = 4  # tokens that a convolution sees


def _continues(rows: Rows) -> bool:
    """Returns whether the rows are chunks behind others."""
    return rows.context_lens[0] > 0 and rows.query_lens[0] > 1


class _AtChunks(CachedRunner):
    """Honest by itself; `_at_chunk` is given the cache that a chunk behind others starts from."""

    def _before(self, rows: Rows) -> Any:
        cache = super()._before(rows)
        if cache is not None and _continues(rows):
            self._at_chunk(cache, rows)
        return cache

    def _at_chunk(self, cache: Any, rows: Rows) -> None:
        pass


@planted_in_states(Promise.P7, "huggingface/transformers#45513")
class ChunksStartAnew(_AtChunks):
    """A chunk of several tokens starts from an empty state, as if it were a prompt."""

    def _at_chunk(self, cache: Any, rows: Rows) -> None:  # noqa: ARG002
        cleared(cache, *BOTH)


@planted_in_states(Promise.P7, "vllm-project/vllm#8533")
class ChunksForgetTheWindow(_AtChunks):
    """A chunk goes on with the recurrence, but the convolution sees zeros before it."""

    def _at_chunk(self, cache: Any, rows: Rows) -> None:  # noqa: ARG002
        cleared(cache, CONVOLUTION)


@planted_in_states(Promise.P7, "vllm-project/vllm#22034")
class AChunkAloneForgetsTheRecurrence(_AtChunks):
    """A chunk that is fed without others starts from an empty recurrence."""

    def _at_chunk(self, cache: Any, rows: Rows) -> None:
        if len(rows) == 1:
            cleared(cache, RECURRENCE)


@planted_in_states(Promise.P7, "NVIDIA/TensorRT-LLM#6334")
class TheWindowIsOneTooShort(_AtChunks):
    """Of the inputs that a convolution needs at a chunk border, the oldest is not kept."""

    def _at_chunk(self, cache: Any, rows: Rows) -> None:  # noqa: ARG002
        for each in states(cache, CONVOLUTION):
            each[..., 1 - KERNEL] = 0


@planted_in_states(Promise.P7, "vllm-project/vllm#23279")
class TheWindowLagsByAToken(_AtChunks):
    """At a chunk border the inputs of the convolution are those one token earlier."""

    def _at_chunk(self, cache: Any, rows: Rows) -> None:  # noqa: ARG002
        for each in states(cache, CONVOLUTION):
            each.copy_(each.roll(1, dims=-1))


class _Unsaved(RowCaches):
    """Honest by itself; where `_is_lost`, what a pass has made of the states is not kept."""

    def gathered(self, rows: Rows) -> Any:
        cache = super().gathered(rows)
        self._old = copied(cache, len(rows)) if self._is_lost(rows) else None
        return cache

    def keep(self, rows: Rows, cache: Any) -> None:
        if rows.context_lens[0] and self._is_lost(rows):
            cache = self._old
        super().keep(rows, cache)

    def _is_lost(self, rows: Rows) -> bool:  # noqa: ARG002
        return False


@planted_in_states(Promise.P7, "sgl-project/sglang#30938")
class ShortChunksLeaveNoState(_Unsaved):
    """A chunk shorter than the convolution's window leaves the states as they were."""

    def _is_lost(self, rows: Rows) -> bool:
        return 1 < rows.query_lens[0] < KERNEL


@planted_in_states(Promise.P1, "vllm-project/vllm#48375")
class EverySixteenthUpdateIsLost(_Unsaved):
    """The update of a decode that fills a block is not written back."""

    def _is_lost(self, rows: Rows) -> bool:
        return rows.query_lens[0] == 1 and any(each % 16 == 15 for each in rows.context_lens)


@planted_in_states(Promise.P7, "vllm-project/vllm#16942")
class ATokenLeftOfAChunkedPromptIsLost(_Unsaved):
    """A last chunk of one token is answered, but leaves no state."""

    def _is_lost(self, rows: Rows) -> bool:
        ends = [context + 1 for context in rows.context_lens]
        lens = [each.num_prompt_tokens for each in rows.sequences]
        return rows.query_lens[0] == 1 and rows.context_lens[0] > 0 and ends == lens


@planted_in_states(Promise.P1, "sgl-project/sglang#34760")
class TheLastTokenOfAPromptCountsTwice(CachedRunner):
    """A prompt's last token is fed to the states again before the first decode."""

    def _run(self, batch: RaggedBatch) -> Tensor:
        rows = batch.scheduled
        prompts = [each.num_prompt_tokens for each in rows.sequences]
        if rows.query_lens[0] == 1 and rows.context_lens[0] and rows.context_lens == prompts:
            again = [Scheduled(each.sequence, each.context_len - 1, 1, False) for each in rows]
            super()._run(RaggedBatch.of(Rows.of(again)))
        return super()._run(batch)


@planted_in_states(Promise.P1, "vllm-project/vllm#35157")
class RecomputingGoesOnFromTheOldState(CachedRunner):
    """A preempted request is fed from the start again, upon the state that it had."""

    def _before(self, rows: Rows) -> Any:
        if rows.context_lens[0] == 0 and len(rows) == 1 and rows.sequences[0].output_token_ids:
            return self._known.get(id(rows.sequences[0]))
        return super()._before(rows)

    def _run(self, batch: RaggedBatch) -> Tensor:
        logits = super()._run(batch)
        rows = batch.scheduled
        cache = self._caches.gathered(rows)
        for place, sequence in enumerate(rows.sequences):
            self._known[id(sequence)] = self._caches.joined([(cache, [place])])
        return logits

    @property
    def _known(self) -> dict[int, Any]:
        known: dict[int, Any] = self.__dict__.setdefault("_states", {})
        return known


@planted_in_states(Promise.P1, "vllm-project/vllm#55178")
class PaddedDecodesCountTwice(CachedRunner):
    """A batch of decodes is filled up to a power of two with its first row, whose state is updated
    again."""

    def _run(self, batch: RaggedBatch) -> Tensor:
        rows = batch.scheduled
        num_rows = len(rows)
        is_padded = rows.context_lens[0] > 0 and rows.query_lens[0] == 1 and num_rows & (num_rows - 1)
        old = copied(self._before(rows), num_rows) if is_padded else None
        logits = super()._run(batch)
        if old is not None:
            new = self._caches.gathered(rows)
            for after, before in zip(states(new, RECURRENCE), states(old, RECURRENCE), strict=True):
                after[0] += after[0] - before[0]
        return logits


@planted_in_states(Promise.P7, "huggingface/transformers#48256")
class PadsPushTheWindowOut(CachedRunner):
    """Prompts are padded behind to a multiple of four, and the convolution's window holds the pads."""

    def _run(self, batch: RaggedBatch) -> Tensor:
        logits = super()._run(batch)
        rows = batch.scheduled
        num_pads = -rows.query_lens[0] % KERNEL
        if num_pads and not rows.context_lens[0]:
            cache = self._caches.gathered(rows)
            for each in states(cache, CONVOLUTION):
                each.copy_(each.roll(-num_pads, dims=-1))
                each[..., -num_pads:] = 0
        return logits


@planted_in_states(Promise.P1, "vllm-project/vllm#22928")
class RecurrenceIsKeptInEightBits(CachedRunner):
    """Between passes the recurrence is kept in eight bits."""

    def _before(self, rows: Rows) -> Any:
        cache = super()._before(rows)
        if cache is not None:
            for each in states(cache, RECURRENCE):
                each.copy_(each.to(torch.float8_e4m3fn).to(each.dtype))
        return cache


@planted_in_states(Promise.P1, "vllm-project/vllm#13466", shows_on="bamba-random")
class RecurrenceIsKeptInBfloat16(CachedRunner):
    """Between passes the recurrence is kept in bfloat16, whatever the model's dtype."""

    def _before(self, rows: Rows) -> Any:
        cache = super()._before(rows)
        if cache is not None:
            for each in states(cache, RECURRENCE):
                each.copy_(each.bfloat16().to(each.dtype))
        return cache


@planted_in_states(Promise.P1, "ggml-org/llama.cpp#16382")
class TheStateIsResetEveryThirtyTwoTokens(CachedRunner):
    """A decode that starts another stretch of 32 tokens starts from an empty recurrence."""

    def _before(self, rows: Rows) -> Any:
        cache = super()._before(rows)
        if cache is not None and rows.query_lens[0] == 1:
            for each in states(cache, RECURRENCE):
                for place, context_len in enumerate(rows.context_lens):
                    if context_len % 32 == 0:
                        each[place] = 0
        return cache
