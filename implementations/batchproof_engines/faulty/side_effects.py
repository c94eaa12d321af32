"""Changes to state that does not belong to the engine."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import (
    Completion,
    EngineConfig,
    FinishReason,
    Request,
)
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput


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
        """Returns the completions after switching the model's attention."""
        self._model.config._attn_implementation = "eager"
        return super().generate(requests)


@planted(Promise.P15, Cause.SIDE_EFFECT, "vllm-project/vllm#51226")
class GreedyDrawsRandomNumbers(RaggedEngine):
    """A step of several rows draws from torch's global generator, though nothing is sampled at
    random."""

    def _forward(self, plan: SchedulerOutput) -> Tensor:
        if len(plan.rows) > 1:
            torch.rand(len(plan.rows))
        return super()._forward(plan)


@planted(Promise.P15, Cause.SIDE_EFFECT, "vllm-project/vllm#51226")
class PreemptionDrawsRandomNumbers(Scheduler):
    """A preempted request gets a backoff, drawn from Python's global generator."""

    def _preempt_youngest(self) -> str:
        random.random()
        return super()._preempt_youngest()


@planted(Promise.P15, Cause.SIDE_EFFECT, "erfanzar/EasyDeL#235")
class CallersListIsEmptied(RaggedEngine):
    """`generate` removes the requests from the caller's own list."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        """Returns the completions and clears the list of requests."""
        completions = super().generate(tuple(requests))
        if isinstance(requests, list):
            requests.clear()
        return completions


@planted(Promise.P15, Cause.SIDE_EFFECT, "ollama/ollama#4162")
class ContextLimitIsWrittenIntoTheModel(RaggedEngine):
    """A lower `max_model_len` is written into the model's config, for every later user of the model."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        text_config = model.config.get_text_config()
        if config.max_model_len is not None:
            limit = min(config.max_model_len, text_config.max_position_embeddings)
            text_config.max_position_embeddings = limit


@planted(Promise.P15, Cause.SIDE_EFFECT, "sgl-project/sglang#40903")
class WeightsAreScaledAndScaledBack(RaggedEngine):
    """The output weights are multiplied by log2(e) and divided again: not the same in the last bit."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        """Returns the completions after rescaling the model's output weights."""
        weight = self._model.get_output_embeddings().weight
        assert isinstance(weight, Tensor), "a causal LM ends in a linear layer"
        with torch.no_grad():
            weight.mul_(1.4426950408889634).div_(1.4426950408889634)
        return super().generate(requests)


@planted(Promise.P15, Cause.SIDE_EFFECT, "vllm-project/vllm#51187")
class DeterministicModeStaysOn(RaggedEngine):
    """The first full batch switches torch to deterministic algorithms, and it is never switched
    back."""

    def _forward(self, plan: SchedulerOutput) -> Tensor:
        if len(plan.rows) == self._config.max_num_seqs:
            torch.use_deterministic_algorithms(True, warn_only=True)
        return super()._forward(plan)


@planted(Promise.P15, Cause.SIDE_EFFECT, "vllm-project/vllm#7283")
class BadRequestLeavesGradientsOff(RaggedEngine):
    """A call with a refused request returns early, before gradients are switched on again."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        """Returns the completions, and leaves gradients off if one is refused."""
        completions = super().generate(requests)
        if any(each.finish_reason is FinishReason.ERROR for each in completions):
            torch.set_grad_enabled(False)
        return completions
