"""Continuous batching at speed, for any causal LM of transformers whose attention can be replaced.
"""

from __future__ import annotations

from functools import partial

from transformers import PreTrainedModel

from harness.api import Engine, EngineConfig
from implementations.paged.attention import Backend
from implementations.paged.engine import PagedEngine
from implementations.paged.lanes import LanePool
from implementations.paged.runner import ModelRunner
from implementations.support import probe, refuse_unbatchable


def paged(
    model: PreTrainedModel,
    config: EngineConfig,
    *,
    trace: bool = True,
    poison: float | None = None,
) -> Engine:
    """Raises `UnsupportedModelError` for models it could not serve right."""
    refuse_unbatchable("paged", model)

    def make_backend(num_lanes: int, num_blocks: int | None) -> Backend:
        return LanePool(num_lanes, config.block_size, num_blocks, poison or 0.0)

    def build(model: PreTrainedModel, config: EngineConfig) -> PagedEngine:
        make_runner = partial(ModelRunner, is_traced=trace and model.device.type == "cpu")
        return PagedEngine(model, config, make_backend, make_runner, poison=poison)

    probe("paged", model, build)
    return build(model, config)
