"""What an honest oddity is, and how one gets on the list.

An oddity is one engine, or a part of the ragged or of the paged one, that overrides as little as it
can. Its docstring says in one line what is odd, its name in snake case is what follows `--engine
odd:`. It claims only the capabilities whose words it keeps.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from transformers import PreTrainedModel

from batchproof.api import Engine, EngineConfig, EngineFactory
from batchproof_engines.parts import engine_with, is_part
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.ragged.scheduler import Scheduler
from batchproof_engines.support import probe, refuse_unbatchable


@dataclass(frozen=True, slots=True)
class Oddity:
    """An honest engine that nobody would write like this."""

    name: str
    summary: str  # what is odd
    kind: str  # where: the module it is in
    factory: EngineFactory = field(compare=False)


REGISTERED: dict[str, Oddity] = {}  # filled while the modules of this package are imported

Part = TypeVar("Part", bound=Callable[..., Any])


def odd(part: Part) -> Part:
    """Put an engine class, a factory or a part of an engine on the list of oddities.

    What the ragged engine can no longer claim under a scheduler, that scheduler names in `lacks`.
    """
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", part.__name__).lower()
    assert part.__doc__, f"oddity {name} must say in its docstring what is odd"
    assert name not in REGISTERED, f"oddity {name} is listed twice"
    kind = part.__module__.rpartition(".")[-1]
    REGISTERED[name] = Oddity(name, part.__doc__.splitlines()[0], kind, _factory(name, part))
    return part


def _factory(name: str, part: Callable[..., Any]) -> EngineFactory:
    """Like any honest engine, an odd one refuses what it would answer wrongly."""
    make = _engine(part)

    def build(model: PreTrainedModel, config: EngineConfig) -> Engine:
        refuse_unbatchable(f"odd:{name}", model)
        probe(f"odd:{name}", model, make)
        return make(model, config)

    return build


def _engine(part: Callable[..., Any]) -> EngineFactory:
    if not (isinstance(part, type) and is_part(part)):
        return cast(EngineFactory, part)
    if not issubclass(part, Scheduler):
        return engine_with(part)
    claims = RaggedEngine.capabilities - getattr(part, "lacks", frozenset())
    return type("Engine", (RaggedEngine,), {"scheduler_class": part, "capabilities": claims})
