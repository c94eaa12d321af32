"""Correct tokens delivered to the wrong request."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from batchproof.api import (
    Completion,
    FinishReason,
    Request,
    TokenEvent,
)
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import SchedulerOutput


@planted(Promise.P4, Cause.ORDER, "vllm-project/vllm#394")
class ResultsInFinishOrder(RaggedEngine):
    """`generate` returns completions in the order in which they finished, refused ones first."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        """Returns the completions in finish order."""
        num_steps = len(self._trace)
        completions = super().generate(requests)
        finished = [each for record in self._trace[num_steps:] for each in record.finished]
        rank = {request_id: index for index, request_id in enumerate(finished)}
        return sorted(completions, key=lambda each: rank.get(each.request_id, -1))


@planted(Promise.P5, Cause.ROUTING, "ml-explore/mlx-lm#965")
class FullBatchMixesTwoRows(RaggedEngine):
    """When every slot is taken, the first row gets the second row's logits."""

    @torch.inference_mode()
    def _forward(self, plan: SchedulerOutput) -> Tensor:
        logits = super()._forward(plan)
        if 1 < len(plan.rows) == self._config.max_num_seqs:
            # Meant as a swap; the right side holds views, so both rows become the second one.
            logits[0], logits[1] = logits[1], logits[0]
        return logits


@planted(Promise.P2, Cause.ROUTING, "deepspeedai/DeepSpeed-MII#384")
class IdenticalPromptsShareAnAnswer(RaggedEngine):
    """Answers are looked up by prompt: all equal prompts of a call get the first one's answer."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        """Returns, for each prompt, the answer of the first request that has it."""
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
        """Returns the completions under stripped ids."""
        completions = super().generate(requests)
        return [replace(each, request_id=each.request_id.strip()) for each in completions]

    def step(self) -> list[TokenEvent]:
        """Returns the events under stripped ids."""
        return [each._replace(request_id=each.request_id.strip()) for each in super().step()]
