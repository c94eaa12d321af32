"""Keys and values written to, or read from, the wrong place of the cache."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from batchproof.api import (
    Limits,
    RowRecord,
    TokenEvent,
)
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.faulty.fault import planted
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import SchedulerOutput


def keys_and_values(layer: object) -> tuple[Tensor, Tensor]:
    """Returns the keys and values of a filled layer of the ragged engine, without copying them.

    Both are `(1, heads, tokens, head_size)`.
    """
    assert isinstance(layer, DynamicLayer), "the ragged engine makes no other layers"
    assert layer.keys is not None, "a forward pass filled it"
    assert layer.values is not None, "a forward pass filled it"
    return layer.keys, layer.values


@planted(Promise.P1, Cause.ADDRESSING, "Wenyueh/MinivLLM#85")
class FirstKeyOfABlockIsLost(RaggedEngine):
    """A decode that opens a new block gets it one step late: its key and value are never stored."""

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        super()._scatter(plan, cache)
        for row in plan.rows:
            is_new_block = row.context_len and row.context_len % self._config.block_size == 0
            if is_new_block and row.query_len == 1:
                for layer in self._caches[row.request_id].layers:
                    for each in keys_and_values(layer):
                        each[:, :, -1] = 0.0


class _PagedReader(RaggedEngine):
    """Honest by itself; `_place` returns the position that each cached key is read from."""

    def _place(self, position: int) -> int:
        return position

    def _gather(self, plan: SchedulerOutput) -> DynamicCache:
        own = self._caches
        self._caches = {row.request_id: self._read(row) for row in plan.rows if row.context_len}
        try:
            return super()._gather(plan)
        finally:
            self._caches = own

    def _read(self, row: RowRecord) -> DynamicCache:
        places = torch.tensor([self._place(position) for position in range(row.context_len)])
        layers = (keys_and_values(layer) for layer in self._caches[row.request_id].layers)
        places = places.to(self._model.device)
        return DynamicCache([(k[:, :, places], v[:, :, places]) for k, v in layers])


@planted(Promise.P1, Cause.ADDRESSING, "GeeeekExplorer/nano-vllm#258")
class BlockTableOneColumnShort(_PagedReader):
    """The block table lacks the column of the last, partial block of a context filled to its end."""

    def _place(self, position: int) -> int:
        size = self._config.block_size
        num_columns = max(1, Limits.of(self._model, self._config).max_model_len // size)
        return min(position // size, num_columns - 1) * size + position % size


@planted(Promise.P5, Cause.ADDRESSING, "ggml-org/llama.cpp#12253")
class DefragmentationCopiesTheWrongWay(RaggedEngine):
    """When a request leaves, the youngest one's last full block is overwritten by the block before
    it."""

    @torch.inference_mode()
    def _run_step(self) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        num_steps, size = len(self._trace), self._config.block_size
        result = super()._run_step()
        if any(record.finished for record in self._trace[num_steps:]) and self._scheduler.running:
            youngest = self._scheduler.running[-1]
            end = youngest.num_computed_tokens // size * size
            if end >= 2 * size:
                for layer in self._caches[youngest.request_id].layers:
                    for each in keys_and_values(layer):
                        each[:, :, end - size : end] = each[:, :, end - 2 * size : end - size]
        return result


@planted(Promise.P5, Cause.ADDRESSING, "vllm-project/vllm#13418")
class PadsAreWrittenToSlotZero(RaggedEngine):
    """Decodes are padded to a power of two, and the padding overwrites the oldest request's first
    key."""

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        super()._scatter(plan, cache)
        num_rows = len(plan.rows)
        is_decode = all(row.context_len and row.query_len == 1 for row in plan.rows)
        if is_decode and num_rows & (num_rows - 1):
            for layer in self._caches[plan.rows[0].request_id].layers:
                for each in keys_and_values(layer):
                    each[:, :, 0] = 0.0


# HAND LanesOfTheFirstReplay


# HAND TableOfTheFormerTenant
