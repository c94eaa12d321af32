"""Wrong ends: the cap, EOS ids, stop sequences, and the finish reason."""

from collections.abc import Sequence as Seq
from dataclasses import replace

from batchproof.api import FinishReason, StepRecord, TokenEvent
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_engines.sampler import GREEDY

Stops = Seq[tuple[int, ...]]


@planted(Promise.P2, Cause.CAP, "vllm-project/vllm#28172")
class CapOffByOne(Sequence):
    """The cap is tested with > instead of >=: a request without EOS gets one token too many."""

    def append(self, token_id: int) -> None:
        super().append(token_id)
        is_beyond = len(self.output_token_ids) > self.request.max_new_tokens
        if self.finish_reason is not FinishReason.STOP:
            self.finish_reason = FinishReason.LENGTH if is_beyond else None


@planted(Promise.P3, Cause.EOS, "lvyufeng/PocketLLM#133")
class EosUncheckedOnFirstToken(Sequence):
    """The token that the prefill yields is not tested for EOS."""

    def append(self, token_id: int) -> None:
        super().append(token_id)
        if len(self.output_token_ids) == 1 and self.finish_reason is FinishReason.STOP:
            is_capped = self.request.max_new_tokens == 1
            self.finish_reason = FinishReason.LENGTH if is_capped else None


@planted(Promise.P5, Cause.EOS, "vllm-project/vllm#22896")
class EosIdsOfTheWholeBatch(Scheduler):
    """Every row is tested against the EOS ids of all rows of the step."""

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        everyones = frozenset(each for seq, _ in plan.scheduled for each in seq.request.eos_token_ids)
        for seq, _ in plan.scheduled:
            seq.request = replace(seq.request, eos_token_ids=everyones)
        return super().update(plan, token_ids)


@planted(Promise.P3, Cause.EOS, "vllm-project/vllm-metal#69")
class EosInThePromptCounts(Sequence):
    """Prompt and outputs are one list: an EOS id anywhere in the prompt ends the request at once."""

    def append(self, token_id: int) -> None:
        super().append(token_id)
        if not self.request.eos_token_ids.isdisjoint(self.token_ids):
            self.finish_reason = FinishReason.STOP


@planted(Promise.P2, Cause.CAP, "ml-explore/mlx-lm#1772")
class CapsAreCutAtTheEnd(Scheduler):
    """When rows leave, the list of caps is shortened at its end: later rows get a neighbour's cap."""

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        caps = [seq.request.max_new_tokens for seq in self.running]
        events, record = super().update(plan, token_ids)
        for seq, cap in zip(self.running, caps, strict=False):
            possible = max(cap, len(seq.output_token_ids) + 1)
            seq.request = replace(seq.request, max_new_tokens=possible)
        return events, record


@planted(Promise.P8, Cause.STALE, "vllm-project/vllm#43894")
class NewcomerInheritsEosIds(Scheduler):
    """A newcomer without EOS ids leaves its slot's entry unchanged: the former tenant's ids end it."""

    _left_behind: tuple[frozenset[int], ...] = ()

    def schedule(self) -> SchedulerOutput:
        plan = super().schedule()
        for seq, _ in plan.scheduled:
            if seq.request_id in plan.admitted and self._left_behind:
                former, self._left_behind = self._left_behind[0], self._left_behind[1:]
                eos = seq.request.eos_token_ids or former
                seq.request = replace(seq.request, eos_token_ids=eos)
        return plan

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        events, record = super().update(plan, token_ids)
        self._left_behind += tuple(
            seq.request.eos_token_ids for seq, _ in plan.scheduled if seq.finish_reason is not None
        )
        return events, record


@planted(Promise.P19, Cause.EOS, "vllm-project/vllm#21987")
class StopsBeforeMinTokens(Sequence):
    """A stop sequence ends the answer although fewer than min_tokens were produced."""

    def append(self, token_id: int) -> None:
        super().append(token_id)
        asked, outputs = self.request.sampling or GREEDY, tuple(self.output_token_ids)
        if any(outputs[-len(each) :] == each for each in asked.stop_token_sequences):
            self.finish_reason = FinishReason.STOP


@planted(Promise.P19, Cause.EOS, "mzau/mlx-knife#68")
class AStopIsSeenWithinOneTokenOnly(Sequence):
    """Each new token is looked at by itself: a stop sequence of several is never seen."""

    def append(self, token_id: int) -> None:
        request, asked = self.request, self.request.sampling or GREEDY
        seen = tuple(each for each in asked.stop_token_sequences if len(each) == 1)
        self.request = replace(request, sampling=replace(asked, stop_token_sequences=seen))
        super().append(token_id)
        self.request = request
