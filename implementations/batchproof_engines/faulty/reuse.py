"""State that outlives its request: kept by a slot, an id, a buffer or a captured step."""

import random
from collections import deque
from collections.abc import Sequence as Seq
from copy import deepcopy
from dataclasses import replace
from itertools import accumulate
from typing import ClassVar

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from batchproof.api import Completion, EngineConfig, Limits, Request, RowRecord, TokenEvent
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine, keys_and_values
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_engines.sampler import Choice


@planted(Promise.P8, Cause.STALE, "waybarrios/vllm-mlx#384")
class SlotKeepsFormerKeys(RaggedEngine):
    """A slot keeps its length: keys of a longer former tenant stay visible behind those of the new
    one."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._left: deque[DynamicCache] = deque()  # by former tenants, for the next ones
        self._former: dict[str, DynamicCache] = {}

    def _settle(
        self, plan: SchedulerOutput, logits: Tensor, choices: Seq[Choice]
    ) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        caches = dict(self._caches)
        result = super()._settle(plan, logits, choices)
        self._left += (caches[each] for each in self._trace[-1].finished)
        return result

    def _kept(self, row: RowRecord) -> int:
        """Returns how many former keys there are beyond those of the tenant, this step included."""
        former = self._former.get(row.request_id)
        if former is None or not row.context_len:
            return 0
        return max(0, former.get_seq_length() - row.context_len - row.query_len)

    def _gather(self, plan: SchedulerOutput) -> DynamicCache:
        for row in plan.rows:
            if not row.context_len:
                self._former.pop(row.request_id, None)
                if self._left:
                    self._former[row.request_id] = self._left.popleft()
        own = self._caches
        self._caches = {row.request_id: self._extended(row) for row in plan.rows if row.context_len}
        try:
            return super()._gather(plan)
        finally:
            self._caches = own

    def _extended(self, row: RowRecord) -> DynamicCache:
        cache, num = deepcopy(self._caches[row.request_id]), self._kept(row)
        if num:
            for index, layer in enumerate(self._former[row.request_id].layers):
                keys, values = keys_and_values(layer)
                cache.update(keys[:, :, -num:], values[:, :, -num:], index)
        return cache

    def _additive_mask(self, rows: Seq[RowRecord]) -> Tensor | dict[str, Tensor]:
        return super()._additive_mask(
            [replace(row, context_len=row.context_len + self._kept(row)) for row in rows]
        )


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
    _buffer: Tensor | None = None
    _num_used = 0

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


@planted(Promise.P16, Cause.RACE, "NVIDIA/TensorRT-LLM#15546")
class TokenBufferRace(RaggedEngine):
    """At random, in one of four steps, decodes read the token buffer as it was one step earlier."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self._clock = random.Random()  # a private generator, never seeded: the race

    def _packed_tokens(self, plan: SchedulerOutput) -> tuple[list[int], list[int]]:
        fed, positions = super()._packed_tokens(plan)
        if self._clock.random() < 0.25:
            ends = accumulate(row.query_len for row in plan.rows)
            for (sequence, num_new), row, end in zip(plan.scheduled, plan.rows, ends, strict=True):
                if num_new == 1 and row.context_len:
                    fed[end - 1] = sequence.token_ids[row.context_len - 1]
        return fed, positions
