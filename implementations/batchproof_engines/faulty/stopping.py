"""Wrong ends: the cap, the EOS, and the finish reason."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from batchproof.api import FinishReason, StepRecord, TokenEvent
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_engines.static import StaticEngine, _Row


@planted(Promise.P2, Cause.CAP, "vllm-project/vllm#28172")
class CapOffByOne(Sequence):
    """The cap is tested with > instead of >=: a request without EOS gets one token too many."""

    def append(self, token_id: int) -> None:
        """Appends the token; the sequence ends only beyond its cap."""
        super().append(token_id)
        is_beyond = len(self.output_token_ids) > self.request.max_new_tokens
        if self.finish_reason is not FinishReason.STOP:
            self.finish_reason = FinishReason.LENGTH if is_beyond else None


@planted(Promise.P3, Cause.EOS, "lvyufeng/PocketLLM#133")
class EosUncheckedOnFirstToken(Sequence):
    """The token that the prefill yields is not tested for EOS."""

    def append(self, token_id: int) -> None:
        """Appends the token; an EOS that is the first one does not end the sequence."""
        super().append(token_id)
        if len(self.output_token_ids) == 1 and self.finish_reason is FinishReason.STOP:
            is_capped = self.request.max_new_tokens == 1
            self.finish_reason = FinishReason.LENGTH if is_capped else None


@planted(Promise.P3, Cause.EOS, "sgl-project/sglang#30291")
class LengthWhenEosFallsOnTheCap(Sequence):
    """The cap is tested before the EOS: an EOS as the last allowed token finishes with LENGTH."""

    def append(self, token_id: int) -> None:
        """Appends the token; at the cap the reason is always LENGTH."""
        super().append(token_id)
        if len(self.output_token_ids) == self.request.max_new_tokens:
            self.finish_reason = FinishReason.LENGTH


@planted(Promise.P2, Cause.CAP, "huggingface/optimum-habana#1408")
class StaticCutAtTheLongestCap(StaticEngine):
    """Static waves: rows have no ends of their own, all are cut at the longest cap of the wave."""

    def _run_wave(self, wave: list[_Row], waiting: tuple[str, ...]) -> None:
        longest = max(row.request.max_new_tokens for row in wave)
        for row in wave:
            row.request = replace(row.request, max_new_tokens=longest)
        super()._run_wave(wave, waiting)


@planted(Promise.P2, Cause.CAP, "bigscience-workshop/lm-evaluation-harness#124")
class StaticStopsWithRowZero(StaticEngine):
    """Static waves: when the first row finishes, so do all others."""

    def _run_wave(self, wave: list[_Row], waiting: tuple[str, ...]) -> None:
        super()._run_wave(wave, waiting)
        num_tokens = len(wave[0].token_ids)
        for row in wave:
            del row.token_ids[num_tokens:]
            del row.logits[num_tokens:]


@planted(Promise.P5, Cause.EOS, "vllm-project/vllm#22896")
class EosIdsOfTheWholeBatch(Scheduler):
    """Every row is tested against the EOS ids of all rows of the step."""

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        """Records the step after giving each sequence the EOS ids of all."""
        everyones = frozenset(each for seq, _ in plan.scheduled for each in seq.request.eos_token_ids)
        for seq, _ in plan.scheduled:
            seq.request = replace(seq.request, eos_token_ids=everyones)
        return super().update(plan, token_ids)


@planted(Promise.P3, Cause.EOS, "vllm-project/vllm#3672")
class OnlyOneEosIdIsTested(Sequence):
    """Of several EOS ids, only the lowest ends a request."""

    def append(self, token_id: int) -> None:
        """Appends the token; an EOS other than the lowest does not end the sequence."""
        super().append(token_id)
        is_lowest = token_id == min(self.request.eos_token_ids, default=token_id)
        if self.finish_reason is FinishReason.STOP and not is_lowest:
            is_capped = len(self.output_token_ids) == self.request.max_new_tokens
            self.finish_reason = FinishReason.LENGTH if is_capped else None


@planted(Promise.P3, Cause.EOS, "vllm-project/vllm-metal#69")
class EosInThePromptCounts(Sequence):
    """Prompt and outputs are one list: an EOS id anywhere in the prompt ends the request at once."""

    def append(self, token_id: int) -> None:
        """Appends the token; an EOS id among all tokens, prompt included, ends the sequence."""
        super().append(token_id)
        if not self.request.eos_token_ids.isdisjoint(self.token_ids):
            self.finish_reason = FinishReason.STOP


@planted(Promise.P3, Cause.EOS, "vllm-project/vllm#5543")
class StopIsReportedAsLengthAfterOneToken(Sequence):
    """An EOS that is a request's very first token ends it, but the reason given is LENGTH."""

    def append(self, token_id: int) -> None:
        """Appends the token; an EOS that is the first one ends the sequence with LENGTH."""
        super().append(token_id)
        if len(self.output_token_ids) == 1 and self.finish_reason is FinishReason.STOP:
            self.finish_reason = FinishReason.LENGTH
