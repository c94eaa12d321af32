"""An honest engine with one component substituted: how planted faults and honest oddities are built.

A component is a subclass of a class that an honest engine is made of. It takes that class's place in
its owner, the altered owner takes its own place in turn, and so on up to an engine. No trial batch is
run.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import PreTrainedModel

from batchproof.api import Engine, EngineConfig, EngineFactory
from batchproof_engines.model_support import refuse_unbatchable
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, Sequence
from batchproof_engines.sampler import Sampler
from batchproof_engines.static import StaticEngine
from batchproof_paged import build_unprobed
from batchproof_paged import scheduler as paged
from batchproof_paged.block_manager import BlockManager
from batchproof_paged.blocks import BlockPool
from batchproof_paged.cached_runner import CachedRunner
from batchproof_paged.checkpoints import Checkpoints
from batchproof_paged.engine import PagedEngine
from batchproof_paged.graphs import CapturedSteps, LastTokens
from batchproof_paged.lanes import LanePool
from batchproof_paged.options import PACKED, PagedOptions
from batchproof_paged.row_caches import RowCaches
from batchproof_paged.runner import ModelRunner
from batchproof_paged.speculation import Speculator
from batchproof_paged.tile_products import TileProducts

# The owner of each component, and the class attribute by which it refers to the component.
OWNERS: dict[type, tuple[type, str]] = {
    Sequence: (Scheduler, "sequence_class"),
    Scheduler: (RaggedEngine, "scheduler_class"),
    BlockManager: (paged.Scheduler, "block_manager_class"),
    paged.Scheduler: (PagedEngine, "scheduler_class"),
    CapturedSteps: (ModelRunner, "graphs_class"),
    LastTokens: (ModelRunner, "last_tokens_class"),
    ModelRunner: (PagedEngine, "runner_class"),
    TileProducts: (ModelRunner, "products_class"),
    Sampler: (PagedEngine, "sampler_class"),
    Speculator: (PagedEngine, "speculator_class"),
    RowCaches: (CachedRunner, "caches_class"),
    Checkpoints: (CachedRunner, "checkpoints_class"),
    CachedRunner: (PagedEngine, "cached_runner_class"),
}
# The components of the paged engine that are arguments of `build_unprobed`.
BUILD_ARGUMENTS: dict[type, str] = {
    PagedEngine: "engine_class",
    LanePool: "lane_pool_class",
    BlockPool: "block_pool_class",
}
# Set explicitly, so that an engine is the same on every device.
DEFAULT_OPTIONS: dict[str, Any] = {"graphs": False, "overlap": False}


def is_component(candidate: type) -> bool:
    """Returns whether `engine_with` can substitute the class in an honest engine."""
    return issubclass(candidate, (*OWNERS, *BUILD_ARGUMENTS))


def engine_with(component: type, **options: Any) -> EngineFactory:
    """Returns a factory of the engine that has the component in the place of its base class.

    `options` are those of `PagedOptions` for a component of the paged engine; `graphs` and `overlap`
    are off by default. A subclass of a static engine is its own factory. Models that the honest engine
    refuses by their configuration are refused.
    """
    if issubclass(component, StaticEngine):
        return component
    if issubclass(component, RaggedEngine):
        return partial(_ragged, component)
    for base, (owner, attribute) in OWNERS.items():
        if issubclass(component, base):
            altered = type(owner.__name__, (owner,), {attribute: component})
            return engine_with(altered, **options)
    arguments = BUILD_ARGUMENTS.items()
    argument = next((name for base, name in arguments if issubclass(component, base)), None)
    assert argument is not None, f"{component.__name__} is not a component of an engine"
    return partial(_paged, {argument: component}, PagedOptions(**DEFAULT_OPTIONS | options))


def _ragged(component: type[RaggedEngine], model: PreTrainedModel, config: EngineConfig) -> Engine:
    refuse_unbatchable("ragged", model)
    return component(model, config)


def _paged(
    classes: dict[str, Any], options: PagedOptions, model: PreTrainedModel, config: EngineConfig
) -> Engine:
    if options.feed in ("auto", PACKED):
        refuse_unbatchable("paged", model)
    return build_unprobed(model, config, options.resolved(model.device), **classes)
