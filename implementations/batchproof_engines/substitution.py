"""An honest engine with one part substituted: how planted faults and honest oddities are built.

A part is a subclass of a class that a teaching engine is made of. It takes that class's place in its
owner, the altered owner takes its own place in turn, and so on up to an engine. No trial batch is run.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from transformers import PreTrainedModel

from batchproof.api import Engine, EngineConfig, EngineFactory
from batchproof_engines.grammars import Grammars, Matcher
from batchproof_engines.lora import Adapters
from batchproof_engines.model_support import refuse_unbatchable
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler, Sequence
from batchproof_engines.ragged_paged.blocks import BlockManager
from batchproof_engines.ragged_paged.drafting import HeadDrafter, Speculator
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine
from batchproof_engines.ragged_paged.scheduler import PagedScheduler
from batchproof_engines.ragged_paged.states import Checkpoints, StatefulEngine, StatesByLane
from batchproof_engines.sampler import Sampler
from batchproof_engines.static import StaticEngine
from batchproof_engines.weights import Weights
from batchproof_paged import built_as
from batchproof_paged.engine import PagedEngine

# The owner of each part, and the class attribute by which it refers to the part.
OWNERS: dict[type, tuple[type, str]] = {
    Sequence: (Scheduler, "sequence_class"),
    BlockManager: (PagedScheduler, "block_manager_class"),
    PagedScheduler: (RaggedPagedEngine, "scheduler_class"),
    Scheduler: (RaggedEngine, "scheduler_class"),
    Sampler: (RaggedEngine, "sampler_class"),
    HeadDrafter: (Speculator, "head_drafter_class"),
    Adapters: (RaggedPagedEngine, "adapters_class"),
    Weights: (RaggedPagedEngine, "weights_class"),
    Matcher: (Grammars, "matcher_class"),
    Grammars: (RaggedPagedEngine, "grammars_class"),
    Speculator: (RaggedPagedEngine, "speculator_class"),
    StatesByLane: (StatefulEngine, "states_class"),
    Checkpoints: (StatefulEngine, "checkpoints_class"),
}


def described(part: Callable[..., Any]) -> tuple[str, str, str]:
    """Returns the name of a fault or an oddity, its docstring in one line, and its kind, which is the
    name of its module."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", part.__name__).lower()
    assert part.__doc__, f"{name} must say in its docstring what is wrong or odd"
    return name, " ".join(part.__doc__.split()), part.__module__.rpartition(".")[-1]


def is_part(candidate: type) -> bool:
    """Returns whether `engine_with` can substitute the class in an honest engine."""
    return issubclass(candidate, tuple(OWNERS))


def altered_engine(part: type) -> type:
    """Returns the class of the teaching engine that has the part in the place of its base class."""
    for base, (owner, attribute) in OWNERS.items():
        if issubclass(part, base):
            return altered_engine(type(owner.__name__, (owner,), {attribute: part}))
    return part


def engine_with(part: type) -> EngineFactory:
    """Returns a factory of the engine that has the part in the place of its base class; an engine's
    subclass is the whole of it. Models that the honest engine refuses by their configuration are
    refused."""
    if issubclass(part, PagedEngine):
        return partial(built_as, part)
    engine_class = altered_engine(part)
    assert issubclass(engine_class, StaticEngine | RaggedEngine), f"{part.__name__} is no part"
    return partial(_build, engine_class) if issubclass(engine_class, RaggedEngine) else engine_class


def _build(engine_class: type[RaggedEngine], model: PreTrainedModel, config: EngineConfig) -> Engine:
    if not issubclass(engine_class, StatefulEngine):
        refuse_unbatchable("ragged", model)
    return engine_class(model, config)
