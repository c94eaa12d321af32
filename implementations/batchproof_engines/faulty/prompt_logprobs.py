"""Logprobs of prompts that are of other positions or requests, are lost, or are there twice."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput
from batchproof_engines.sampler import GREEDY, PromptLogprobs
from batchproof_engines.static import StaticEngine, _Row
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.engine import PagedEngine
from batchproof_paged.runner import Flight
from batchproof_paged.scheduler import Scheduler as PagedScheduler
from batchproof_paged.sequence import Sequence


@planted(Promise.P18, Cause.LOGPROBS, "AI-Hypercomputer/maxtext#2102")
class PromptTokensAreScoredByThemselves(StaticEngine):
    """A prompt token's logprob is read from the logits at its own position, which have seen it."""

    def _score_prompts(self, wave: list[_Row], logits: Tensor) -> None:
        super()._score_prompts(wave, logits.roll(-1, dims=1))


@planted(Promise.P18, Cause.LOGPROBS, "RBLN-SW/vllm-rbln#1030")
class PromptTokensAreScoredByTheLast(RaggedEngine):
    """Of each row only the logits that a token is sampled from are kept, and score all its tokens."""

    def _score_prompts(self, plan: SchedulerOutput, logits: Tensor) -> None:
        rows = logits.split([row.query_len for row in plan.rows])
        super()._score_prompts(plan, torch.cat([each[-1:].expand_as(each) for each in rows]))


@planted(Promise.P18, Cause.LOGPROBS, "sgl-project/sglang#9841")
class RowsThatAskForNothingAreNotCounted(RaggedEngine):
    """Rows that ask for no prompt logprobs are not counted where later rows look for their logits."""

    def _score_prompts(self, plan: SchedulerOutput, logits: Tensor) -> None:
        pairs = zip(plan.scheduled, plan.rows, strict=True)
        asking = [
            (scheduled, row)
            for scheduled, row in pairs
            if (scheduled[0].request.sampling or GREEDY).prompt_logprobs is not None
        ]
        if asking:
            scheduled, rows = zip(*asking, strict=True)
            num_tokens = sum(row.query_len for row in rows)
            super()._score_prompts(replace(plan, scheduled=scheduled, rows=rows), logits[:num_tokens])


@planted(Promise.P18, Cause.LOGPROBS, "vllm-project/vllm#4055")
class EachChunkIsTakenForAPrompt(RaggedEngine):
    """The first token of each chunk has no logprobs, as if nothing stood before it."""

    def _score_prompts(self, plan: SchedulerOutput, logits: Tensor) -> None:
        found = [sequence.prompt_logprobs for sequence, _ in plan.scheduled]
        before = [len(each) for each in found]
        super()._score_prompts(plan, logits)
        for each, num_before in zip(found, before, strict=True):
            each[num_before : num_before + 1] = [None] * (len(each) > num_before)


@planted(Promise.P18, Cause.LOGPROBS, "vllm-project/vllm#29071")
class PreemptionForgetsThatPromptsAreScored(Scheduler):
    """A request that is preempted amid its prompt no longer asks for its logprobs."""

    def _preempt_youngest(self) -> str:
        victim = self.running[-1]
        asked = victim.request.sampling
        if asked and len(victim.prompt_logprobs) < len(victim.request.prompt_token_ids):
            victim.prompt_logprobs.clear()
            victim.request = replace(victim.request, sampling=replace(asked, prompt_logprobs=None))
        return super()._preempt_youngest()


@planted(Promise.P18, Cause.LOGPROBS, "vllm-project/vllm#37796")
class PromptsAreScoredTwiceAfterPreemption(RaggedEngine):
    """What was found before a preemption is kept, and that which the prompt tells again is added."""

    def _score_prompts(self, plan: SchedulerOutput, logits: Tensor) -> None:
        of_rows = logits.split([row.query_len for row in plan.rows])
        for (sequence, _), row, given in zip(plan.scheduled, plan.rows, of_rows, strict=True):
            if sequence.prompt_logprobs and not row.context_len:
                again: PromptLogprobs = []
                self._sampler.score_prompt(again, sequence.request, 0, given)
                sequence.prompt_logprobs += again
        super()._score_prompts(plan, logits)


class _AlwaysBehindAPrefix(PagedScheduler):
    def _usable(self, sequence: Sequence, known: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002
        return known


@planted(Promise.P18, Cause.LOGPROBS, "vllm-project/vllm#42245")
class APrefixIsScoredByWhoCameBefore(PagedEngine):
    """A cached prefix is not fed, and its logprobs are what the request before left in the buffer."""

    scheduler_class = _AlwaysBehindAPrefix
    _buffer: PromptLogprobs = []  # noqa: RUF012 - replaced, not altered

    def _score_prompts(self, batch: RaggedBatch, flight: Flight) -> None:
        for sequence, context_len, _, _ in batch.scheduled.picked(batch.scored_rows):
            if len(sequence.prompt_logprobs) <= context_len:
                sequence.prompt_logprobs[:] = self._buffer[: context_len + 1]
                lacking = context_len + 1 - len(self._buffer)
                sequence.prompt_logprobs += [None] * lacking
            self._buffer = sequence.prompt_logprobs
        super()._score_prompts(batch, flight)
