"""Right tokens, delivered to the wrong place or twice."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.api import Completion, EngineConfig, Request, StepRecord, TokenEvent
from harness.causes import Cause
from harness.promises import Promise
from implementations.faulty.fault import planted
from implementations.ragged import RaggedEngine
from implementations.ragged_scheduler import Scheduler, SchedulerOutput


@planted(Promise.P4, Cause.ORDER, "vllm-project/vllm#394")
class ResultsInFinishOrder(RaggedEngine):
    """`generate` returns completions in the order in which they finished, refused ones first."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        num_steps = len(self._trace)
        completions = super().generate(requests)
        finished = [each for record in self._trace[num_steps:] for each in record.finished]
        rank = {request_id: index for index, request_id in enumerate(finished)}
        return sorted(completions, key=lambda each: rank.get(each.request_id, -1))


@planted(Promise.P14, Cause.STREAM, "NVIDIA/TensorRT-LLM#3241")
class FirstTokenStreamedTwice(RaggedEngine):
    """The event of a first token is delivered again together with the second."""

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


@planted(Promise.P14, Cause.STREAM, "sgl-project/sglang#39645")
class StreamRestartsAfterPreemption(Scheduler):
    """A request that comes back from preemption streams its earlier tokens once more."""

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        events, record = super().update(plan, token_ids)
        again = [
            TokenEvent(seq.request_id, token_id)
            for (seq, _), row in zip(plan.scheduled, plan.rows, strict=True)
            if seq.request_id in plan.admitted and row.is_sampled
            for token_id in seq.output_token_ids[:-1]
        ]
        return again + events, record


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


@planted(Promise.P5, Cause.ROUTING, "ml-explore/mlx-lm#965")
class FullBatchMixesTwoRows(RaggedEngine):
    """When every slot is taken, the first row is given the second row's logits."""

    @torch.inference_mode()
    def _forward(self, plan: SchedulerOutput) -> Tensor:
        logits = super()._forward(plan)
        if 1 < len(plan.rows) == self._config.max_num_seqs:
            # Meant as a swap; the right side holds views, so both rows become the second.
            logits[0], logits[1] = logits[1], logits[0]
        return logits
