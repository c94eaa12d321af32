"""Weights, keys and requests of before a sleep, an update or a clearing that are used afterwards, or
lost."""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import Request
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged_paged.blocks import BlockManager
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine
from batchproof_engines.ragged_paged.scheduler import PagedScheduler
from batchproof_engines.weights import Weights


@planted(Promise.P23, Cause.LIFECYCLE, "InternLM/lmdeploy#4917")
class PrefixesOutliveTheirWeights(BlockManager):
    """The prefix cache is not told of new weights, so prompts go on behind keys of the old ones."""

    def forget(self) -> None:
        pass


@planted(Promise.P23, Cause.LIFECYCLE, "NVIDIA/TensorRT-LLM#17937")
class KeysInUseOutliveTheirWeights(PagedScheduler):
    """Requests in flight keep their keys when the weights change; only what is cached is forgotten."""

    def preempt_all(self) -> None:
        pass


@planted(Promise.P23, Cause.LIFECYCLE, "vllm-project/vllm-omni#6739")
class ClearingIsAStub(RaggedPagedEngine):
    """To clear the cache is accepted, and does nothing."""

    def clear_cache(self) -> None:
        pass


@planted(Promise.P23, Cause.LIFECYCLE, "vllm-project/vllm#51665")
class HeadKeepsItsWeights(Weights):
    """The head, which was once a copy of the embedding, gets no new weights."""

    def take_over(self, name: str, mine: Tensor, theirs: Tensor) -> None:
        if name != "lm_head.weight":
            super().take_over(name, mine, theirs)


@planted(Promise.P23, Cause.LIFECYCLE, "PrimeIntellect-ai/prime-rl#2714")
class OneParameterIsMissed(Weights):
    """An update leaves one parameter of the last layer as it was."""

    def take_over(self, name: str, mine: Tensor, theirs: Tensor) -> None:
        last = self.model.config.num_hidden_layers - 1
        if name != f"model.layers.{last}.self_attn.v_proj.weight":
            super().take_over(name, mine, theirs)


@planted(Promise.P23, Cause.LIFECYCLE, "vllm-project/vllm#32718")
class FirstUpdateIsTheLast(Weights):
    """An update applies the weights of the first one again, which were kept."""

    _source: PreTrainedModel | None = None

    def update(self, source: PreTrainedModel, names: Seq[str] | None) -> None:
        self._source = self._source or source
        super().update(self._source, names)


@planted(Promise.P23, Cause.CANCEL, "radixark/miles#2589")
class UpdateAbortsWhoRuns(RaggedPagedEngine):
    """New weights end all requests in flight."""

    def update_weights(self, model: PreTrainedModel, names: Seq[str] | None = None) -> None:
        for sequence in [*self._scheduler.waiting, *self._scheduler.running]:
            self.abort(sequence.request_id)
        super().update_weights(model, names)


@planted(Promise.P23, Cause.LIFECYCLE, "vllm-project/vllm-omni#6442")
class SleepLosesKeysThatAreStillKnown(RaggedPagedEngine):
    """A sleep empties the pool of keys, but tables and prefix cache stay as they are."""

    def sleep(self) -> None:
        self._is_asleep = True
        for layer, states in self._pool.layers.items():
            self._pool.layers[layer] = [torch.zeros_like(each) for each in states]


@planted(Promise.P23, Cause.LIFECYCLE, "vllm-project/vllm-omni#4473")
class NewcomerWakesTheEngine(RaggedPagedEngine):
    """A request that comes while the engine sleeps or is paused is served at once."""

    def add(self, request: Request) -> None:
        self._is_asleep = self._is_paused = False
        super().add(request)


@planted(Promise.P23, Cause.LIFECYCLE, "vllm-project/vllm#34125")
class AbortIsLostInAPause(RaggedPagedEngine):
    """A request that is cancelled while the engine stands still goes on afterwards."""

    def abort(self, request_id: str) -> None:
        if self.is_serving:
            super().abort(request_id)
