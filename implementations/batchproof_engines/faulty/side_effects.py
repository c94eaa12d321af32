"""Changes to state that is not the engine's, and state that all engines of a process share."""

import random
from collections.abc import Sequence as Seq
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import Completion, EngineConfig, FinishReason, Request, RowRecord, TokenEvent
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, Sequence


@planted(Promise.P15, Cause.SIDE_EFFECT, "1CatAI/1Cat-vLLM#406")
class TokenBufferOfAllEngines(RaggedEngine):
    """Decodes are fed from a buffer by id that belongs to the class, so two live engines mix their
    tokens."""

    _chosen: ClassVar[dict[str, int]] = {}

    def _row_tokens(self, sequence: Sequence, row: RowRecord) -> tuple[list[int], range]:
        fed, positions = super()._row_tokens(sequence, row)
        is_decode = row.query_len == 1 and row.is_sampled and sequence.output_token_ids
        return [self._chosen[row.request_id]] if is_decode else fed, positions

    def _run_step(self) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        events, logits = super()._run_step()
        tokens = {each.request_id: each.token_id for each in events}
        self._chosen.update({key: token for key, token in tokens.items() if token is not None})
        return events, logits


@planted(Promise.P6, Cause.STALE, "GeeeekExplorer/nano-vllm#191")
class WindowOfTheFirstModel(RaggedEngine):
    """The sliding window is looked up once per process: later models are served with the first
    one's."""

    _known: ClassVar[list[int | None]] = []

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._known.append(self._window)
        self._window = self._known[0]


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
        completions = super().generate(tuple(requests))
        if isinstance(requests, list):
            requests.clear()
        return completions


@planted(Promise.P15, Cause.SIDE_EFFECT, "sgl-project/sglang#40903")
class WeightsAreScaledAndScaledBack(RaggedEngine):
    """The output weights are multiplied by log2(e) and divided again: not the same in the last bit."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        weight = self._model.get_output_embeddings().weight
        assert isinstance(weight, Tensor), "a causal LM ends in a linear layer"
        with torch.no_grad():
            weight.mul_(1.4426950408889634).div_(1.4426950408889634)
        return super().generate(requests)


@planted(Promise.P15, Cause.SIDE_EFFECT, "vllm-project/vllm#7283")
class BadRequestLeavesGradientsOff(RaggedEngine):
    """A call with a refused request returns early, before gradients are switched on again."""

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        completions = super().generate(requests)
        if any(each.finish_reason is FinishReason.ERROR for each in completions):
            torch.set_grad_enabled(False)
        return completions
