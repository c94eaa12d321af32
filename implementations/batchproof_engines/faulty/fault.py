"""What a planted fault is, and how it is registered.

A fault is one class that overrides one thing of an honest engine or of one of its parts (see
`substitution.py`). Its docstring states the lie; its name in snake case follows `--engine fault:`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from batchproof.api import EngineFactory
from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise
from batchproof_engines.substitution import described, engine_with


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


FAULTS: dict[str, Fault] = {}  # filled when the modules of this package are imported

Part = TypeVar("Part", bound=type)


def planted(
    promise: Promise, cause: Cause, thread: str, shows_on: str | None = None
) -> Callable[[Part], Part]:
    """Returns a decorator that registers a class as a planted fault; `thread` is "owner/repo#123"."""

    def register(part: Part) -> Part:
        name, lie, kind = described(part)
        assert name not in FAULTS, f"fault {name} is planted twice"
        factory = engine_with(part)  # no trial batch: it might refuse the lie
        FAULTS[name] = Fault(name, lie, kind, promise, cause, thread, part, factory, shows_on)
        return part

    return register
