"""Latents and rotated keys of multi-head latent attention that are lost or normed again, and experts of
rows that are taken for pads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import accumulate
from typing import TypeVar

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from batchproof.api import EngineConfig
from batchproof.findings.causes import Cause
from batchproof.models.embedded import LATENT_MODEL
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import keys_and_values
from batchproof_engines.ragged.scheduler import SchedulerOutput
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine

Part = TypeVar("Part", bound=type)


def planted_in_latents(promise: Promise, cause: Cause, thread: str) -> Callable[[Part], Part]:
    """Returns a decorator that registers an engine as a fault that latent attention shows."""
    return planted(promise, cause, thread, shows_on=LATENT_MODEL)


@planted_in_latents(Promise.P1, Cause.ADDRESSING, "sgl-project/sglang#38666")
class DecodesKeepNoRotatedKey(RaggedPagedEngine):
    """A decode stores its latent, and not the rotated key that lies beside it."""

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        ends = [*accumulate(row.query_len for row in plan.rows)]
        for layer in cache.layers:
            _, rotated = keys_and_values(layer)
            for row, end in zip(plan.rows, ends, strict=True):
                if row.context_len and row.query_len == 1:
                    rotated[:, :, end - 1 - ends[-1]] = 0.0
        super()._scatter(plan, cache)


@planted_in_latents(Promise.P7, Cause.CHUNK, "vllm-project/vllm#26042")
class LaterChunksNormTheirContextAgain(RaggedPagedEngine):
    """A later chunk of a prompt reads the latents of its context through their norm, as if they had not
    been normed before they were stored."""

    def _gather(self, plan: SchedulerOutput) -> DynamicCache:
        cache, start = super()._gather(plan), 0
        for row in plan.rows:
            own = slice(start, start := start + row.context_len)
            if row.context_len and row.query_len > 1:
                for block, layer in zip(self._model.model.layers, cache.layers, strict=True):
                    latents, _ = keys_and_values(layer)
                    latents[:, :, own] = block.self_attn.kv_a_layernorm(latents[:, :, own])
        return cache


@planted_in_latents(Promise.P5, Cause.STALE, "vllm-project/vllm#46408")
class RowsThatJoinHaveTheExpertsOfPads(RaggedPagedEngine):
    """A step of decodes is padded, and what is a pad is known from the last such step: rows that have
    joined since have the expert -1, which is the last one."""

    _num_known: int | None = None  # rows that are no pads in this step, if it has any
    _num_last: int | None = None  # rows of the last step of decodes

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(copy.deepcopy(model), config)
        for name, part in self._model.named_modules():
            if name.endswith(".mlp.gate"):
                part.register_forward_hook(self._routed)

    def _routed(self, _gate: object, _given: object, routed: tuple[Tensor, ...]) -> None:
        logits, _, experts = routed
        if self._num_known is not None:
            experts[self._num_known :] = logits.shape[-1] - 1

    def _packed_logits(self, plan: SchedulerOutput) -> Tensor:
        self._num_known = None
        if all(row.context_len and row.query_len == 1 for row in plan.rows):
            self._num_known, self._num_last = self._num_last, len(plan.rows)
        return super()._packed_logits(plan)
