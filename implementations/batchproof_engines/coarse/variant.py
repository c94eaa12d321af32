"""An honest engine on a changed model, or with changed requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from transformers import PreTrainedModel

from batchproof.api import Engine, EngineConfig, EngineFactory
from batchproof_engines.copies import Copies
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged_paged.build import has_states
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine
from batchproof_engines.ragged_paged.states import StatefulEngine
from batchproof_engines.reference import ReferenceEngine
from batchproof_engines.static import StaticEngine


def _ragged_paged(model: PreTrainedModel, config: EngineConfig) -> Engine:
    return (StatefulEngine if has_states(model) else RaggedPagedEngine)(model, config)


# None runs a trial batch: it might refuse what is coarse.
BASES: dict[str, EngineFactory] = {
    "reference": ReferenceEngine,
    "static": StaticEngine,
    "ragged": RaggedEngine,
    "ragged-paged": _ragged_paged,
}


@dataclass(frozen=True, slots=True)
class Variant:
    """An honest engine that is coarse or set otherwise."""

    name: str
    summary: str
    kind: str
    factory: EngineFactory = field(compare=False)


def on_a_copy(copies: Copies, base: EngineFactory) -> EngineFactory:
    """Returns the base engine on a changed copy of the model."""
    return partial(_built, copies, base)


def _built(copies: Copies, base: EngineFactory, model: PreTrainedModel, config: EngineConfig) -> Engine:
    return base(copies.of(model), config)
