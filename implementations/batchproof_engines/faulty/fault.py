"""What a planted fault is, and how it is registered.

A fault is one class that overrides one thing of an honest engine or of one of its components (see
`substitution.py`). Its docstring states the lie; its name in snake case follows `--engine fault:`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from batchproof.api import EngineFactory
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.substitution import engine_with


@dataclass(frozen=True, slots=True)
class Fault:
    """A planted fault: its lie, the promise it breaks, and the real bug it is modelled on."""

    name: str
    summary: str  # the lie
    kind: str  # its class: the name of its module
    promise: Promise
    cause: Cause  # which a diagnosis should name
    thread: str  # "owner/repo#123" on GitHub
    component: type = field(compare=False)  # the class that lies
    factory: EngineFactory = field(compare=False)
    shows_on: str | None = None  # the only embedded model that shows it; None: an ordinary one does


REGISTERED: dict[str, Fault] = {}  # filled when the modules of this package are imported

Component = TypeVar("Component", bound=type)


def planted(
    promise: Promise, cause: Cause, thread: str, shows_on: str | None = None, **options: Any
) -> Callable[[Component], Component]:
    """Returns a decorator that registers a class as a planted fault.

    `thread` is "owner/repo#123"; `options` are those of the paged engine that the class is a component
    of.
    """

    def register(component: Component) -> Component:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", component.__name__).lower()
        assert component.__doc__, f"fault {name} must state its lie in its docstring"
        summary = " ".join(component.__doc__.split())
        assert name not in REGISTERED, f"fault {name} is planted twice"
        kind = component.__module__.rpartition(".")[-1]
        # No trial batch: it might refuse the lie.
        factory = engine_with(component, **options)
        REGISTERED[name] = Fault(
            name, summary, kind, promise, cause, thread, component, factory, shows_on
        )
        return component

    return register
