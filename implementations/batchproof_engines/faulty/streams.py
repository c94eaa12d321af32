"""Events that are missing, duplicated, late or misnamed; the completions of `generate` are right."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from transformers import PreTrainedModel

from batchproof.api import EngineConfig, StepRecord, TokenEvent
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput


@planted(Promise.P14, Cause.STREAM, "NVIDIA/TensorRT-LLM#3241")
class FirstTokenStreamedTwice(RaggedEngine):
    """The event of a first token is delivered again together with that of the second."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._begun: set[str] = set()
        self._first: dict[str, TokenEvent] = {}

    def step(self) -> list[TokenEvent]:
        """Returns the events of the step, and repeats first tokens before second ones."""
        delivered: list[TokenEvent] = []
        for event in super().step():
            request_id = event.request_id
            first = self._first.pop(request_id, None)
            if first is not None and event.token_id is not None:
                delivered.append(first)
            delivered.append(event)
            if event.finish_reason is not None:
                self._begun.discard(request_id)
            elif request_id not in self._begun:
                self._begun.add(request_id)
                self._first[request_id] = event
        return delivered


@planted(Promise.P14, Cause.STREAM, "sgl-project/sglang#39645")
class StreamRestartsAfterPreemption(Scheduler):
    """A request that resumes after a preemption streams its earlier tokens once more."""

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        """Records the step, and repeats the events of resumed sequences."""
        events, record = super().update(plan, token_ids)
        again = [
            TokenEvent(seq.request_id, token_id)
            for (seq, _), row in zip(plan.scheduled, plan.rows, strict=True)
            if seq.request_id in plan.admitted and row.is_sampled
            for token_id in seq.output_token_ids[:-1]
        ]
        return again + events, record


@planted(Promise.P14, Cause.STREAM, "exo-explore/exo#1691")
class FinishReasonOnAnEventOfItsOwn(RaggedEngine):
    """The last token's event has no finish reason; a second event, without a token, carries it."""

    def step(self) -> list[TokenEvent]:
        """Returns the events of the step, with each last one split in two."""
        delivered: list[TokenEvent] = []
        for event in super().step():
            if event.token_id is None or event.finish_reason is None:
                delivered.append(event)
            else:
                delivered += [event._replace(finish_reason=None), event._replace(token_id=None)]
        return delivered


@planted(Promise.P14, Cause.STREAM, "InternLM/lmdeploy#2395")
class SecondEventBehindTheThird(RaggedEngine):
    """In a full batch the event of a second token comes a step late, after that of the third."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._held: dict[str, TokenEvent] = {}

    def step(self) -> list[TokenEvent]:
        """Returns the events of the step, except that second tokens of a full batch are held back."""
        delivered: list[TokenEvent] = []
        events = super().step()
        lens = {seq.request_id: len(seq.output_token_ids) for seq in self._scheduler.running}
        for event in events:
            if lens.get(event.request_id) == 2 and len(lens) == self._config.max_num_seqs > 1:
                self._held[event.request_id] = event
                continue
            delivered.append(event)
            late = self._held.pop(event.request_id, None)
            if late is not None and event.token_id is not None:
                delivered.append(late)
        return delivered


@planted(Promise.P14, Cause.STREAM, "huggingface/transformers#40479")
class AbortTakesUndeliveredEventsAlong(RaggedEngine):
    """An abort empties the queue of undelivered events, including those of other requests."""

    def abort(self, request_id: str) -> None:
        """Aborts the request and drops all undelivered events."""
        if self._scheduler.is_live(request_id):
            self._undelivered.clear()
        super().abort(request_id)


@planted(Promise.P14, Cause.STREAM, "sgl-project/sglang#39738")
class TokenAfterAPreemptionIsNotStreamed(Scheduler):
    """The first token after a preemption is kept, but its event is mistaken for one already sent."""

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        """Records the step, and drops the events of resumed sequences."""
        resumed = {
            seq.request_id
            for seq, _ in plan.scheduled
            if seq.request_id in plan.admitted and seq.output_token_ids
        }
        events, record = super().update(plan, token_ids)
        is_sent = [each.request_id in resumed and each.finish_reason is None for each in events]
        return [each for each, sent in zip(events, is_sent, strict=True) if not sent], record
