"""What a planted fault is, and how one gets on the list.

A fault is one class that overrides one thing of an honest part: an engine, or what `parts.PLACES` and
`parts.PIECES` name. Its docstring is the lie in one line, its name in snake case is what follows
`--engine fault:`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from batchproof.api import EngineFactory
from batchproof.causes import Cause
from batchproof.promises import Promise
from batchproof_engines.parts import engine_with


@dataclass(frozen=True, slots=True)
class Fault:
    """A lying engine, the promise it breaks, and the real bug it is modelled on."""

    name: str
    summary: str  # the lie
    kind: str  # its class: the module it is in
    promise: Promise
    cause: Cause  # what a diagnosis should name
    thread: str  # "owner/repo#123" on GitHub
    part: type = field(compare=False)  # the class that lies
    factory: EngineFactory = field(compare=False)


REGISTERED: dict[str, Fault] = {}  # filled while the modules of this package are imported

Part = TypeVar("Part", bound=type)


def planted(promise: Promise, cause: Cause, thread: str, **options: Any) -> Callable[[Part], Part]:
    """Put the class on the list of faults. `options`: of the paged engine it is a part of."""

    def register(part: Part) -> Part:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", part.__name__).lower()
        assert part.__doc__, f"fault {name} must tell its lie in its docstring"
        summary = part.__doc__.splitlines()[0]
        assert name not in REGISTERED, f"fault {name} is planted twice"
        kind = part.__module__.rpartition(".")[-1]
        # Nothing is probed: a probe might refuse the lie.
        factory = engine_with(part, **options)
        REGISTERED[name] = Fault(name, summary, kind, promise, cause, thread, part, factory)
        return part

    return register
