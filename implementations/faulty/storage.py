"""Keys and values that are not kept as they were computed."""

from __future__ import annotations

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from harness.causes import Cause
from harness.promises import Promise
from implementations.faulty.fault import planted
from implementations.ragged import RaggedEngine
from implementations.ragged_scheduler import SchedulerOutput


def keys_and_values(layer: object) -> tuple[Tensor, Tensor]:
    """Of a filled layer of the ragged engine: `(1, heads, tokens, head_size)` each, not copied."""
    assert isinstance(layer, DynamicLayer), "the ragged engine makes no others"
    assert layer.keys is not None, "a forward pass filled it"
    assert layer.values is not None, "a forward pass filled it"
    return layer.keys, layer.values


@planted(Promise.P1, Cause.PRECISION, "apple/axlearn#1049")
class KvCacheInBfloat16(RaggedEngine):
    """Keys and values are kept in bfloat16, whatever the model's dtype (no lie on a bfloat16 model)."""

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        for layer in cache.layers:
            for each in keys_and_values(layer):
                each.copy_(each.bfloat16())
        super()._scatter(plan, cache)


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
