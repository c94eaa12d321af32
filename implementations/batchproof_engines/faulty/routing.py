"""Correct tokens delivered to the wrong request."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from torch import Tensor

from batchproof.api import (
    Completion,
    FinishReason,
    Request,
    StepRecord,
    TokenEvent,
)
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
