"""The capabilities of an engine: those it declares, or else those its methods show."""

from __future__ import annotations

from collections.abc import Callable, Set

from batchproof.api import (
    Capability,
    ClosableEngine,
    Engine,
    EngineConfig,
    MaskingEngine,
    Request,
    SteppingEngine,
    TracingEngine,
)
from batchproof.errors import UsageError

PROTOCOLS = {
    Capability.STEPPING: SteppingEngine,
    Capability.TRACING: TracingEngine,
    Capability.MASKING: MaskingEngine,
    Capability.CLOSING: ClosableEngine,
}
# Capabilities that can only be seen through others.
NEEDS = {
    Capability.SCHEDULING: {Capability.STEPPING, Capability.TRACING},
    Capability.CHUNKED_PREFILL: {Capability.TRACING},
    Capability.PREEMPTION: {Capability.TRACING},
    Capability.PREFIX_CACHING: {Capability.TRACING},
}
DELAYS = (0, 1)  # steps; no known engine reads later
PROBE = Request("capability-probe", (1, 2, 3), 1)


def capabilities_of(name: str, build: Callable[[EngineConfig], Engine]) -> frozenset[Capability]:
    """Builds one engine and returns its capabilities; without a declaration it also answers one
    short prompt.

    Raises `UsageError` if the engine has no `generate`, has only a part of a capability's methods,
    declares a capability without having its methods, or declares an invalid `scheduling_delay`.
    """
    engine = build(EngineConfig(return_logits=True))
    if not callable(getattr(engine, "generate", None)):
        raise UsageError(
            f"engine {name!r}: its factory returned a {type(engine).__name__} "
            f"without generate(requests)"
        )
    capabilities = _capabilities(name, engine)
    scheduling_delay_of(name, engine, capabilities)
    return capabilities


def scheduling_delay_of(name: str, engine: Engine, capabilities: Set[Capability]) -> int:
    """Returns the declared delay in steps (`batchproof.api.DelayedEngine`); 0 without a declaration.

    Raises `UsageError` if it is no property, not 0 or 1, or 1 without the capability SCHEDULING.
    """
    try:
        declared: object = getattr(engine, "scheduling_delay", 0)
    except Exception as error:
        raise UsageError(f"engine {name!r}: reading scheduling_delay raised {error!r}") from error
    if not hasattr(engine, "scheduling_delay") and hasattr(type(engine), "scheduling_delay"):
        raise UsageError(f"engine {name!r}: reading scheduling_delay raised an AttributeError")
    if callable(declared):
        raise UsageError(f"engine {name!r}: scheduling_delay must be a property, but is a method")
    if type(declared) is not int or declared not in DELAYS:
        raise UsageError(
            f"engine {name!r}: scheduling_delay is {declared!r}, but must be "
            f"{' or '.join(map(str, DELAYS))}: the steps by which it reads a token late"
        )
    if declared and Capability.SCHEDULING not in capabilities:
        raise UsageError(
            f"engine {name!r} declares a scheduling_delay of {declared}, which needs "
            f"{Capability.SCHEDULING}: nothing else is measured by it"
        )
    return declared


def _capabilities(name: str, engine: Engine) -> frozenset[Capability]:
    structural = {each for each in PROTOCOLS if _has(name, engine, each)}
    declared = getattr(engine, "capabilities", None)
    if declared is not None:
        if not isinstance(declared, Set):
            raise UsageError(
                f"engine {name!r}: capabilities is a {type(declared).__name__}, but must be a "
                f"frozenset of batchproof.api.Capability"
            )
        return _checked(name, frozenset(declared), structural)
    found = set(structural)
    if {Capability.STEPPING, Capability.TRACING} <= found:
        found.add(Capability.SCHEDULING)
    try:
        (answer,) = engine.generate([PROBE])
        if answer.logits is not None:
            found.add(Capability.LOGITS)
    except Exception:  # the tests report better what is wrong
        pass
    return frozenset(found)


def _has(name: str, engine: Engine, capability: Capability) -> bool:
    protocol = PROTOCOLS[capability]
    members = sorted(member for member in vars(protocol) if not member.startswith("_"))
    missing = [member for member in members if not hasattr(engine, member)]
    # One method of several is a slip, not a choice.
    if missing and len(missing) < len(members) and "step" not in missing:
        raise UsageError(f"engine {name!r} has part of {capability}: it lacks {', '.join(missing)}")
    # A method is true whatever it would return: a forgotten @property.
    for member in {"has_unfinished", "trace"} & set(members):
        if not missing and callable(getattr(engine, member)):
            raise UsageError(f"engine {name!r}: {member} must be a property, but is a method")
    return not missing


def _checked(
    name: str, declared: frozenset[object], structural: set[Capability]
) -> frozenset[Capability]:
    unknown = [each for each in declared if each not in list(Capability)]
    if unknown:
        raise UsageError(
            f"engine {name!r} declares {unknown[0]!r}, which is no capability: {', '.join(Capability)}"
        )
    capabilities = frozenset(Capability(str(each)) for each in declared)
    for each in sorted(capabilities & PROTOCOLS.keys() - structural):
        members = sorted(m for m in vars(PROTOCOLS[each]) if not m.startswith("_"))
        raise UsageError(f"engine {name!r} declares {each}, which needs {', '.join(members)}")
    for each, needed in NEEDS.items():
        lacking = sorted(needed - capabilities)
        if each in capabilities and lacking:
            raise UsageError(f"engine {name!r} declares {each}, which needs {', '.join(lacking)}")
    return capabilities
