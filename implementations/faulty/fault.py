"""What a planted fault is, and how one gets on the list.

A fault is one class that overrides one thing of an honest part: an engine, the ragged engine's
scheduler, or its `Sequence`. Its docstring is the lie in one line, its name in snake case is what
follows `--engine fault:`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from harness.api import EngineFactory
from harness.causes import Cause
from harness.promises import Promise
from implementations.ragged import RaggedEngine
from implementations.ragged_scheduler import Scheduler, Sequence
from implementations.static import StaticEngine


@dataclass(frozen=True, slots=True)
class Fault:
    """A lying engine, the promise it breaks, and the real bug it is modelled on."""

    name: str
    summary: str  # the lie
    kind: str  # its class: the module it is in
    promise: Promise
    cause: Cause  # what a diagnosis should name
    thread: str  # "owner/repo#123" on GitHub
    factory: EngineFactory = field(compare=False)


REGISTERED: dict[str, Fault] = {}  # filled while the modules of this package are imported

Part = TypeVar("Part", bound=RaggedEngine | StaticEngine | Scheduler | Sequence)


def planted(promise: Promise, cause: Cause, thread: str) -> Callable[[type[Part]], type[Part]]:
    """Put the class on the list of faults."""

    def register(part: type[Part]) -> type[Part]:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", part.__name__).lower()
        assert part.__doc__, f"fault {name} must tell its lie in its docstring"
        summary = part.__doc__.splitlines()[0]
        assert name not in REGISTERED, f"fault {name} is planted twice"
        kind = part.__module__.rpartition(".")[-1]
        REGISTERED[name] = Fault(name, summary, kind, promise, cause, thread, _factory(part))
        return part

    return register


def _factory(part: type[Part]) -> EngineFactory:
    """An engine that is honest but for this part. Nothing is probed: a probe might refuse the lie."""
    if issubclass(part, Sequence):
        return _factory(type("Scheduler", (Scheduler,), {"sequence_class": part}))
    if issubclass(part, Scheduler):
        return _factory(type("Engine", (RaggedEngine,), {"scheduler_class": part}))
    return part
