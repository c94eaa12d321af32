"""What an honest oddity is, and how it is registered.

An oddity is an engine, or a component of the ragged or the paged one, that overrides as little as
possible. Its docstring says what is odd; its name in snake case follows `--engine odd:`. It claims only
the capabilities whose promises it keeps.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from transformers import PreTrainedModel

from batchproof.api import Engine, EngineConfig, EngineFactory
from batchproof_engines.model_support import refuse_batch_dependent, refuse_unbatchable
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler
from batchproof_engines.substitution import engine_with, is_component
from batchproof_engines.trial_batch import probe_logits
from batchproof_paged.cached_runner import CachedRunner
from batchproof_paged.options import STACKED
from batchproof_paged.row_caches import RowCaches


@dataclass(frozen=True, slots=True)
class Oddity:
    """An honest engine of unusual design."""

    name: str
    summary: str  # what is odd
    kind: str  # its class: the name of its module
    factory: EngineFactory = field(compare=False)


REGISTERED: dict[str, Oddity] = {}  # filled when the modules of this package are imported

Component = TypeVar("Component", bound=Callable[..., Any])


def odd(component: Component) -> Component:
    """Registers an engine class, a factory or a component of an engine as an oddity.

    A scheduler names in `lacks` the capabilities that the ragged engine can no longer claim with it.
    """
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", component.__name__).lower()
    assert component.__doc__, f"oddity {name} must say in its docstring what is odd"
    assert name not in REGISTERED, f"oddity {name} is registered twice"
    summary = " ".join(component.__doc__.split())
    kind = component.__module__.rpartition(".")[-1]
    REGISTERED[name] = Oddity(name, summary, kind, _factory(name, component))
    return component


def _factory(name: str, component: Callable[..., Any]) -> EngineFactory:
    """Returns a factory that refuses, like any honest engine, the models it would answer wrongly."""
    make = _engine(component)

    refuse = refuse_batch_dependent if _is_of_states(component) else refuse_unbatchable

    def build(model: PreTrainedModel, config: EngineConfig) -> Engine:
        refuse(f"odd:{name}", model)
        probe_logits(f"odd:{name}", model, make)
        return make(model, config)

    return build


def _is_of_states(component: Callable[..., Any]) -> bool:
    """Returns whether it is a component of the engine that carries recurrent states."""
    return isinstance(component, type) and issubclass(component, CachedRunner | RowCaches)


def _engine(component: Callable[..., Any]) -> EngineFactory:
    if not (isinstance(component, type) and is_component(component)):
        return cast(EngineFactory, component)
    if _is_of_states(component):
        return engine_with(component, feed=STACKED)
    if not issubclass(component, Scheduler):
        return engine_with(component)
    claims = RaggedEngine.capabilities - getattr(component, "lacks", frozenset())
    return type("Engine", (RaggedEngine,), {"scheduler_class": component, "capabilities": claims})
