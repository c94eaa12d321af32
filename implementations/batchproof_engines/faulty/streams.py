"""Events that are missing, duplicated, late or misnamed; the completions of `generate` are right."""

from __future__ import annotations

from transformers import PreTrainedModel

from batchproof.api import (
    EngineConfig,
    TokenEvent,
)
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.delayed import (
    DelayedEngine,
    DelayedScheduler,
    DelayedSequence,
)
from batchproof_engines.ragged.engine import RaggedEngine


@planted(Promise.P14, Cause.STREAM, "NVIDIA/TensorRT-LLM#3241")
class FirstTokenStreamedTwice(RaggedEngine):
    """The event of a first token is delivered again together with that of the second."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._begun: set[str] = set()
        self._first: dict[str, TokenEvent] = {}

    def step(self) -> list[TokenEvent]:
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


@planted(Promise.P14, Cause.STREAM, "exo-explore/exo#1691")
class FinishReasonOnAnEventOfItsOwn(RaggedEngine):
    """The last token's event has no finish reason; a second event, without a token, carries it."""

    def step(self) -> list[TokenEvent]:
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
        if self._scheduler.is_live(request_id):
            self._undelivered.clear()
        super().abort(request_id)


class _StreamsTheSurplus(DelayedScheduler):
    def _read(self, sequence: DelayedSequence) -> list[TokenEvent]:
        surplus = sequence.token_ids[sequence.end :]
        (eos,) = super()._read(sequence)
        if not surplus:  # it was preempted
            return [eos]
        return [eos._replace(finish_reason=None), eos._replace(token_id=surplus[0])]


@planted(Promise.P14, Cause.STREAM, "huggingface/transformers#47912")
class SurplusTokenIsStreamed(DelayedEngine):
    """Under a declared delay, the token of the surplus row is streamed after the EOS."""

    scheduler_class = _StreamsTheSurplus
