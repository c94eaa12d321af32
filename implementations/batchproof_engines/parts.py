"""An honest engine but for one part of it: how lying engines (`faulty`) and oddities (`odd`) are made.

A part is a subclass of something an honest engine is made of. It takes the place of that in its owner,
the owner so altered in the owner's owner, and so on up to an engine. Nothing is probed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import PreTrainedModel

from batchproof.api import Engine, EngineConfig, EngineFactory
from batchproof_engines.paged import build_unprobed
from batchproof_engines.paged import scheduler as paged
from batchproof_engines.paged.block_manager import BlockManager
from batchproof_engines.paged.blocks import BlockPool
from batchproof_engines.paged.engine import PagedEngine
from batchproof_engines.paged.graphs import CapturedSteps, LastTokens
from batchproof_engines.paged.lanes import LanePool
from batchproof_engines.paged.options import PagedOptions
from batchproof_engines.paged.runner import ModelRunner
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, Sequence
from batchproof_engines.static import StaticEngine

# Of which class, by which name: the place of a part.
PLACES: dict[type, tuple[type, str]] = {
    Sequence: (Scheduler, "sequence_class"),
    Scheduler: (RaggedEngine, "scheduler_class"),
    BlockManager: (paged.Scheduler, "block_manager_class"),
    paged.Scheduler: (PagedEngine, "scheduler_class"),
    CapturedSteps: (ModelRunner, "graphs_class"),
    LastTokens: (ModelRunner, "last_tokens_class"),
    ModelRunner: (PagedEngine, "runner_class"),
}
# Of the paged engine, the keyword of `build_unprobed`.
PIECES: dict[type, str] = {
    PagedEngine: "engine_class",
    LanePool: "lane_pool_class",
    BlockPool: "block_pool_class",
}
# The same on every device.
PLAIN: dict[str, Any] = {"graphs": False, "overlap": False}


def is_part(part: type) -> bool:
    """Is it one that `engine_with` can put in its place?"""
    return issubclass(part, (*PLACES, *PIECES))


def engine_with(part: type, **options: Any) -> EngineFactory:
    """`options`: of a paged engine, `graphs` and `overlap` being off unless they say otherwise."""
    if issubclass(part, RaggedEngine | StaticEngine):
        return part
    for base, (owner, name) in PLACES.items():
        if issubclass(part, base):
            return engine_with(type(owner.__name__, (owner,), {name: part}), **options)
    piece = next((name for base, name in PIECES.items() if issubclass(part, base)), None)
    assert piece is not None, f"{part.__name__} is no part of an engine"
    return partial(_paged, {piece: part}, PagedOptions(**PLAIN | options))


def _paged(
    pieces: dict[str, Any], options: PagedOptions, model: PreTrainedModel, config: EngineConfig
) -> Engine:
    return build_unprobed(model, config, options.resolved(model.device), **pieces)
