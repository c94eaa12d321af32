"""What an honest oddity is, and how it is registered.

An oddity is an engine, or a part of a teaching engine, that overrides as little as possible. Its
docstring says what is odd; its name in snake case follows `--engine odd:`. It claims only the
capabilities whose promises it keeps.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from transformers import PreTrainedModel

from batchproof.api import Engine, EngineConfig, EngineFactory
from batchproof_engines.model_support import refuse_batch_dependent, refuse_unbatchable
from batchproof_engines.ragged_paged.states import StatefulEngine
from batchproof_engines.substitution import altered_engine, described, is_part
from batchproof_engines.trial_batch import probe_logits


@dataclass(frozen=True, slots=True)
class Oddity:
    """An honest engine of unusual design."""

    name: str
    summary: str  # what is odd
    kind: str  # its class: the name of its module
    factory: EngineFactory = field(compare=False)


ODDITIES: dict[str, Oddity] = {}  # filled when the modules of this package are imported

Part = TypeVar("Part", bound=Callable[..., Any])


def odd(part: Part) -> Part:
    """Registers an engine class, a factory or a part of a teaching engine as an oddity.

    A part names in `lacks` the capabilities that the engine can no longer claim with it.
    """
    name, summary, kind = described(part)
    assert name not in ODDITIES, f"oddity {name} is registered twice"
    ODDITIES[name] = Oddity(name, summary, kind, _factory(name, part))
    return part


def _factory(name: str, part: Callable[..., Any]) -> EngineFactory:
    """Returns a factory that refuses, like any honest engine, the models it would answer wrongly."""
    make: Any = part
    if isinstance(part, type) and is_part(part):
        make = altered_engine(part)
        if hasattr(part, "lacks"):
            make = type("Engine", (make,), {"capabilities": make.capabilities - part.lacks})
    is_stateful = isinstance(make, type) and issubclass(make, StatefulEngine)
    refuse = refuse_batch_dependent if is_stateful else refuse_unbatchable

    def build(model: PreTrainedModel, config: EngineConfig) -> Engine:
        refuse(f"odd:{name}", model)
        probe_logits(f"odd:{name}", model, make)
        return make(model, config)

    return build
