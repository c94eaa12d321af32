"""State that outlives its request: kept by a slot, an id, a buffer or a captured step."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from batchproof.api import (
    Completion,
    EngineConfig,
    Limits,
    Request,
    RowRecord,
)
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.addressing import keys_and_values
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence


class _Slots(dict[str, DynamicCache]):
    """The caches by request; what tenants leave behind waits here for the next ones, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.num_tenants: dict[str, int] = {}  # so far of the request's slot, itself included
        self.left_behind: deque[tuple[int, DynamicCache]] = deque()

    def __delitem__(self, request_id: str) -> None:
        self.left_behind.append((self.num_tenants[request_id], self.pop(request_id)))


@planted(Promise.P8, Cause.STALE, "waybarrios/vllm-mlx#384")
class SlotKeepsFormerKeys(RaggedEngine):
    """A slot keeps its length: keys of a longer former tenant stay visible behind those of the new
    one."""

    first_bad_tenant: ClassVar[int] = 2

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._caches = self._slots = _Slots()
        self._former: dict[str, DynamicCache] = {}

    def _move_in(self, request_id: str) -> None:
        num_before = 0
        self._former.pop(request_id, None)
        if self._slots.left_behind:
            num_before, cache = self._slots.left_behind.popleft()
            if num_before + 1 >= self.first_bad_tenant:
                self._former[request_id] = cache
        self._slots.num_tenants[request_id] = num_before + 1

    def _num_kept(self, row: RowRecord) -> int:
        """Returns the number of former keys beyond what the tenant has written, this step included."""
        former = self._former.get(row.request_id)
        if former is None or row.context_len == 0:
            return 0
        return max(0, former.get_seq_length() - row.context_len - row.query_len)

    def _gather(self, plan: SchedulerOutput) -> DynamicCache:
        for row in plan.rows:
            if row.context_len == 0:
                self._move_in(row.request_id)
        self._caches = {row.request_id: self._extended(row) for row in plan.rows if row.context_len}
        try:
            return super()._gather(plan)
        finally:
            self._caches = self._slots

    def _extended(self, row: RowRecord) -> DynamicCache:
        """Returns the tenant's own cache with the visible keys of the former one."""
        own, num_kept = self._slots[row.request_id], self._num_kept(row)
        if num_kept == 0:
            return own
        cache = DynamicCache()
        layers = zip(own.layers, self._former[row.request_id].layers, strict=True)
        for index, (mine, former) in enumerate(layers):
            (own_k, own_v), (former_k, former_v) = keys_and_values(mine), keys_and_values(former)
            cache.update(
                torch.cat([own_k, former_k[:, :, -num_kept:]], dim=2),
                torch.cat([own_v, former_v[:, :, -num_kept:]], dim=2),
                index,
            )
        return cache

    def _additive_mask(self, rows: Seq[RowRecord]) -> Tensor | dict[str, Tensor]:
        return super()._additive_mask(
            [replace(row, context_len=row.context_len + self._num_kept(row)) for row in rows]
        )


@planted(Promise.P8, Cause.STALE, "ggml-org/llama.cpp#17316")
class ThirdTenantSeesTheSecond(SlotKeepsFormerKeys):
    """Only from a slot's third tenant on do the keys of a longer tenant before it stay visible."""

    first_bad_tenant = 3


@planted(Promise.P8, Cause.STALE, "vllm-project/vllm#15043")
class ReusedIdKeepsItsFormerPrompt(Scheduler):
    """An id that is used again is served with its first prompt's tokens, as far as they reach."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._buffers: dict[str, tuple[int, ...]] = {}

    def add(self, request: Request) -> Sequence:
        sequence = super().add(request)
        kept = self._buffers.setdefault(request.request_id, request.prompt_token_ids)
        num_kept = min(len(kept), len(request.prompt_token_ids))
        sequence.token_ids[:num_kept] = kept[:num_kept]
        return sequence


@planted(Promise.P8, Cause.STALE, "huggingface/transformers#45323")
class StepOfAKnownShapeIsReplayed(RaggedEngine):
    """A step with the shape of an earlier one, in any call, is fed the earlier one's tokens."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._captured: dict[tuple[tuple[int, int], ...], tuple[list[int], list[int]]] = {}

    def _packed_tokens(self, plan: SchedulerOutput) -> tuple[list[int], list[int]]:
        shape = tuple((row.context_len, row.query_len) for row in plan.rows)
        return self._captured.setdefault(shape, super()._packed_tokens(plan))


@planted(Promise.P8, Cause.STALE, "vllm-project/vllm#45357")
class LateWriteLandsInTheNewcomer(RaggedEngine):
    """The key that a finished request still writes in the next step lands in the newcomer's first
    block."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._in_flight: dict[str, tuple[int, list[Tensor]]] = {}  # offset in the block, key and value

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        super()._scatter(plan, cache)
        finished = self._trace[-1].finished if self._trace else ()
        newcomers = [row for row in plan.rows if row.context_len == 0]
        for row, former in zip(newcomers, finished if self._is_late() else (), strict=False):
            offset, columns = self._in_flight[former]
            if offset < row.query_len:
                for each, column in zip(self._columns(row, offset), columns, strict=True):
                    each.copy_(column)
        self._in_flight = {}
        for row in plan.rows:
            end = row.context_len + row.query_len
            columns = [each.clone() for each in self._columns(row, end - 1)]
            self._in_flight[row.request_id] = (end % self._config.block_size, columns)

    def _is_late(self) -> bool:
        return True

    def _columns(self, row: RowRecord, position: int) -> list[Tensor]:
        layers = self._caches[row.request_id].layers
        return [each[:, :, position] for layer in layers for each in keys_and_values(layer)]


@planted(Promise.P16, Cause.RACE, "sgl-project/sglang#18803")
class LateWriteIsARace(LateWriteLandsInTheNewcomer):
    """At random, once in two, a finished request's late key lands in the newcomer's first block."""

    def _is_late(self) -> bool:
        return random.SystemRandom().random() < 0.5  # does not touch Python's global generator


@planted(Promise.P8, Cause.STALE, "openvinotoolkit/openvino.genai#3722")
class FirstBlocksSharedByAWeakHash(Scheduler):
    """A prompt's first block is looked up by the sum of its tokens: equal sums share the first one's
    block."""

    def __init__(self, limits: Limits, config: EngineConfig) -> None:
        super().__init__(limits, config)
        self._blocks: dict[int, list[int]] = {}

    def add(self, request: Request) -> Sequence:
        sequence = super().add(request)
        block = sequence.token_ids[: self._config.block_size]
        if len(block) == self._config.block_size:
            sequence.token_ids[: len(block)] = self._blocks.setdefault(sum(block), block)
        return sequence


@planted(Promise.P8, Cause.STALE, "sgl-project/sglang#35546")
class LogitsShareABuffer(RaggedEngine):
    """Returned logits are views of one buffer, which the next call writes again."""

    num_rows: ClassVar[int] = 256

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._buffer: Tensor | None = None
        self._num_used = 0

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        self._num_used = 0
        return super().generate(requests)

    def _completion(self, sequence: Sequence, logits: list[Tensor]) -> Completion:
        done = super()._completion(sequence, logits)
        if done.logits is None:
            return done
        if self._buffer is None:
            self._buffer = done.logits.new_empty(self.num_rows, done.logits.shape[1])
        view = self._buffer[self._num_used :][: len(done.logits)]
        self._num_used += len(done.logits)
        return replace(done, logits=view.copy_(done.logits)) if len(view) == len(done.logits) else done
