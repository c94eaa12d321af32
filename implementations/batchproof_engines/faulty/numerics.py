"""Computation in a lower precision than the model's (no lie on a model that is in 16 bit itself), and bits
that depend on the shapes of a batch."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache

from batchproof.api import (
    TokenEvent,
)
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.addressing import keys_and_values
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import SchedulerOutput


@planted(Promise.P1, Cause.PRECISION, "apple/axlearn#1049")
class KvCacheInBfloat16(RaggedEngine):
    """Keys and values are kept in bfloat16, whatever the model's dtype (no lie on a bfloat16 model)."""

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        for layer in cache.layers:
            for each in keys_and_values(layer):
                each.copy_(each.bfloat16())
        super()._scatter(plan, cache)


@planted(Promise.P5, Cause.PRECISION, "vllm-project/vllm#37442")
class KvScaleOfTheWholeStep(RaggedEngine):
    """Keys and values are kept as 16-bit integers with one scale for all sequences of a step."""

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        num_new = sum(row.query_len for row in plan.rows)
        for layer in cache.layers:
            for each in keys_and_values(layer):
                new = each[:, :, -num_new:]
                scale = new.abs().max() / 32767
                new.copy_((new / scale).round() * scale)
        super()._scatter(plan, cache)


@planted(Promise.P1, Cause.PRECISION, "vllm-project/vllm#48271")
class TokenChosenFromRoundedLogits(RaggedEngine):
    """The token is chosen from logits rounded to bfloat16; the logits returned are exact."""

    _exact: Tensor

    @torch.inference_mode()
    def _forward(self, plan: SchedulerOutput) -> Tensor:
        self._exact = super()._forward(plan)
        return self._exact.bfloat16().float()

    def _run_step(self) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        events, rounded = super()._run_step()
        if not rounded:
            return events, rounded
        ids = [row.request_id for row in self._trace[-1].rows]
        return events, {each: self._exact[ids.index(each)] for each in rounded}


@planted(Promise.P1, Cause.PRECISION, "osaurus-ai/vmlx-swift#60")
class LongContextInBfloat16(RaggedEngine):
    """A step with a sequence of more than 64 tokens is computed in bfloat16 for all its rows."""

    def _forward(self, plan: SchedulerOutput) -> Tensor:
        is_long = any(row.context_len + row.query_len > 64 for row in plan.rows)
        with torch.autocast(self._model.device.type, torch.bfloat16, enabled=is_long):
            return super()._forward(plan)


# HAND PromptOfAnotherChangesTheTiles
