"""An honest engine on a changed model, or with changed requests."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from batchproof.api import Engine, EngineConfig, EngineFactory
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.reference import ReferenceEngine
from batchproof_engines.static import StaticEngine
from batchproof_paged import build_unprobed
from batchproof_paged.feeding import REFUSALS
from batchproof_paged.options import PACKED, PagedOptions


def _paged(model: PreTrainedModel, config: EngineConfig) -> Engine:
    REFUSALS[PACKED](model)  # no trial batch would find another way for it
    options = PagedOptions(graphs=False, overlap=False).resolved(model.device, model.dtype)
    return build_unprobed(model, config, options)


# None runs a trial batch: it might refuse what is coarse.
BASES: dict[str, EngineFactory] = {
    "reference": ReferenceEngine,
    "static": StaticEngine,
    "ragged": RaggedEngine,
    "paged": _paged,
}


@dataclass(frozen=True, slots=True)
class Variant:
    """An honest engine that is coarse or set otherwise."""

    name: str
    summary: str
    kind: str
    factory: EngineFactory = field(compare=False)


class Copies:
    """One changed copy of each model, made when it is first needed."""

    def __init__(self, change: Callable[[PreTrainedModel], PreTrainedModel]) -> None:
        self._change = change
        self._known: WeakKeyDictionary[PreTrainedModel, PreTrainedModel] = WeakKeyDictionary()

    def of(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns the changed copy."""
        if model not in self._known:
            self._known[model] = self._change(deepcopy(model))
        return self._known[model]


def on_a_copy(copies: Copies, base: EngineFactory) -> EngineFactory:
    """Returns the base engine on a changed copy of the model."""
    return partial(_built, copies, base)


def _built(copies: Copies, base: EngineFactory, model: PreTrainedModel, config: EngineConfig) -> Engine:
    return base(copies.of(model), config)
