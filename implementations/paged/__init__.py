"""Continuous batching at speed, for any causal LM of transformers whose attention can be replaced.
"""

from __future__ import annotations

from transformers import PreTrainedModel

from harness.api import Engine, EngineConfig
from implementations.paged.attention import Backend
from implementations.paged.engine import PagedEngine
from implementations.paged.lanes import LanePool
from implementations.support import probe, refuse_unbatchable


def paged(
    model: PreTrainedModel,
    config: EngineConfig,
    *,
    poison: float | None = None,
) -> Engine:
    """Raises `UnsupportedModelError` for models it could not serve right."""
    refuse_unbatchable("paged", model)

    def make_backend(num_lanes: int, num_blocks: int | None) -> Backend:
        return LanePool(num_lanes, config.block_size, num_blocks, poison or 0.0)

    def build(model: PreTrainedModel, config: EngineConfig) -> PagedEngine:
        return PagedEngine(model, config, make_backend, poison=poison)

    probe("paged", model, build)
    return build(model, config)
