"""Correct tokens delivered to the wrong request, twice, late, or not at all."""

from collections.abc import Sequence as Seq
from dataclasses import replace

from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import Completion, EngineConfig, FinishReason, Request, StepRecord, TokenEvent
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput


@planted(Promise.P4, Cause.ORDER, "vllm-project/vllm#394")
class ResultsInFinishOrder(RaggedEngine):
    """`generate` returns completions in the order in which they finished, refused ones first."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        num_steps = len(self._trace)
        completions = super().generate(requests)
        finished = [each for record in self._trace[num_steps:] for each in record.finished]
        rank = {request_id: index for index, request_id in enumerate(finished)}
        return sorted(completions, key=lambda each: rank.get(each.request_id, -1))


@planted(Promise.P2, Cause.ROUTING, "deepspeedai/DeepSpeed-MII#384")
class IdenticalPromptsShareAnAnswer(RaggedEngine):
    """Answers are looked up by prompt: all equal prompts of a call get the first one's answer."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        first: dict[tuple[int, ...], Completion] = {}
        shared: list[Completion] = []
        for request, completion in zip(requests, super().generate(requests), strict=True):
            if completion.finish_reason is FinishReason.ERROR:
                shared.append(completion)
            else:
                answer = first.setdefault(request.prompt_token_ids, completion)
                shared.append(replace(answer, request_id=request.request_id))
        return shared


@planted(Promise.P4, Cause.ROUTING, "vllm-project/vllm#15041")
class IdsAreStripped(RaggedEngine):
    """Ids are returned without leading and trailing white space."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        completions = super().generate(requests)
        return [replace(each, request_id=each.request_id.strip()) for each in completions]

    def step(self) -> list[TokenEvent]:
        return [each._replace(request_id=each.request_id.strip()) for each in super().step()]


@planted(Promise.P5, Cause.ROUTING, "torch-spyre/sendnn-inference#511")
class TwoFinishersSwapTheirLastTokens(Scheduler):
    """When two requests reach their caps in the same step, each gets the other's last token."""

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        tokens = list(token_ids)
        last = [
            index
            for index, (seq, _) in enumerate(plan.scheduled)
            if plan.rows[index].is_sampled
            and len(seq.output_token_ids) + 1 == seq.request.max_new_tokens
        ]
        if len(last) > 1:
            a, b = last[:2]
            tokens[a], tokens[b] = tokens[b], tokens[a]
        return super().update(plan, tokens)


@planted(Promise.P5, Cause.ROUTING, "NVIDIA/TensorRT-LLM#6147")
class LogitsAreHandedOutAfterCompaction(RaggedEngine):
    """Logits are returned by row after finished rows have moved to the end; the tokens are right."""

    def _run_step(self) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        events, logits = super()._run_step()
        finished = {event.request_id for event in events if event.finish_reason is not None}
        compacted = sorted(logits, key=lambda request_id: request_id in finished)
        return events, dict(zip(compacted, logits.values(), strict=True))


@planted(Promise.P14, Cause.STREAM, "NVIDIA/TensorRT-LLM#3241")
class FirstTokenStreamedTwice(RaggedEngine):
    """The event of a first token is delivered again together with that of the second."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._first: dict[str, TokenEvent | None] = {}  # None: it was delivered twice

    def step(self) -> list[TokenEvent]:
        delivered: list[TokenEvent] = []
        for event in super().step():
            request_id = event.request_id
            first = self._first.get(request_id)
            if first is not None and event.token_id is not None:
                delivered.append(first)
            delivered.append(event)
            if event.finish_reason is not None:
                self._first.pop(request_id, None)
            else:
                self._first[request_id] = None if request_id in self._first else event
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
