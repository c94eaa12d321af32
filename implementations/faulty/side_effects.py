"""Traces left on what is not the engine's own."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from transformers import PreTrainedModel

from harness.api import Completion, EngineConfig, Request
from harness.causes import Cause
from harness.promises import Promise
from implementations.faulty.fault import planted
from implementations.ragged import RaggedEngine


@planted(Promise.P15, Cause.SIDE_EFFECT, "vllm-project/vllm#11953")
class BuildingSeedsTheGlobalGenerator(RaggedEngine):
    """Building an engine sets torch's global seed, so the caller's random numbers repeat."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        torch.manual_seed(0)


@planted(Promise.P15, Cause.SIDE_EFFECT, "huggingface/transformers#45943")
class AttentionImplementationNotRestored(RaggedEngine):
    """`generate` switches the model to eager attention and leaves it so."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        self._model.config._attn_implementation = "eager"
        return super().generate(requests)
