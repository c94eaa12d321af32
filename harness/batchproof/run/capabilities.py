"""The capabilities of an engine: those it declares, or else those its methods show."""

import inspect
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from batchproof.api import (
    CHOOSING,
    AdapterEngine,
    CacheClearingEngine,
    Capability,
    ClosableEngine,
    Engine,
    EngineConfig,
    InvariantEngine,
    MaskingEngine,
    PausingEngine,
    Request,
    SamplingLimits,
    SamplingParams,
    SleepingEngine,
    SteppingEngine,
    TracingEngine,
    UpdatingEngine,
    fields_of,
)
from batchproof.decoding.grammar import KINDS, TakenGrammars
from batchproof.decoding.sampling import DRAFTS, TakenFields
from batchproof.errors import UsageError
from batchproof.run.time_limit import time_limit
from batchproof.workload.workloads import DEFAULT_TIME_LIMIT_S

PROTOCOLS = {
    Capability.STEPPING: SteppingEngine,
    Capability.TRACING: TracingEngine,
    Capability.MASKING: MaskingEngine,
    Capability.CLOSING: ClosableEngine,
    Capability.INVARIANCE: InvariantEngine,
    Capability.ADAPTERS: AdapterEngine,
    Capability.PAUSING: PausingEngine,
    Capability.SLEEPING: SleepingEngine,
    Capability.CACHE_CLEARING: CacheClearingEngine,
    Capability.WEIGHT_UPDATES: UpdatingEngine,
}
# Methods of these names may do something else, so an engine has what it declares.
LIFECYCLE: Set[object] = {
    *(Capability.PAUSING, Capability.SLEEPING, Capability.CACHE_CLEARING, Capability.WEIGHT_UPDATES),
}
MEMBERS = {
    each: sorted(name for name in vars(protocol) if not name.startswith("_"))
    for each, protocol in PROTOCOLS.items()
}
# Capabilities that can only be seen through others, or are tested with them.
NEEDS = {
    Capability.SCHEDULING: {Capability.STEPPING, Capability.TRACING},
    Capability.PREFIX_CACHING: {Capability.TRACING},
    Capability.EXACT_DRAFTS: {Capability.SPECULATION, Capability.TRACING},
    Capability.PROMPT_LOGPROBS: {Capability.LOGPROBS},
    Capability.INTERRUPTION: {Capability.STEPPING},
}
LEAST_FIELDS = {Capability.SAMPLING: {"temperature"}}  # of a capability, where not any will do
DELAYS = (0, 1)  # steps; no known engine reads later
PROBE = Request("capability-probe", (1, 2, 3), 1)


class Offer(NamedTuple):
    """What an engine can do, which fields of `SamplingParams` it takes, and of what the size of a block
    is a multiple."""

    capabilities: frozenset[Capability]
    fields: TakenFields
    block_size_multiple: int = 1
    grammars: TakenGrammars = TakenGrammars()


def offer_of(
    name: str, build: Callable[[EngineConfig], Engine], time_limit_s: float = DEFAULT_TIME_LIMIT_S
) -> Offer:
    """Builds one engine and returns what it offers; without a declaration it also answers one short
    prompt.

    Raises `EngineHang` if reading or answering takes longer than `time_limit_s`, or building twice as
    long, what the factory raises, and `UsageError` if the engine has no `generate`, has only a part of
    a capability's methods, declares a capability without having its methods, declares an invalid
    `scheduling_delay` or `block_size_multiple`, or has a property that raises.
    """
    with time_limit(2 * time_limit_s, "building the engine"):  # the first build imports a library
        engine = build(EngineConfig(return_logits=True))
    _require_engine(name, engine)
    with time_limit(time_limit_s, "reading what the engine declares"):
        declared = _read(name, engine, "capabilities", None)
        undeclared = LIFECYCLE - declared if isinstance(declared, Set) else LIFECYCLE
        shown = PROTOCOLS.keys() - undeclared
        structural = {each for each in shown if _has(name, engine, each)}
    if declared is None:
        capabilities = _shown(engine, structural, time_limit_s)
    else:
        capabilities = _checked(name, declared, structural)
    scheduling_delay_of(name, engine, capabilities)
    taken = taken_fields_of(name, engine, capabilities)
    return Offer(capabilities, taken, block_size_multiple_of(name, engine), grammars_of(name, engine))


def _require_engine(name: str, engine: object) -> None:
    if inspect.iscoroutine(engine):
        engine.close()  # so that Python does not warn that it was never awaited
        raise UsageError(
            f"engine {name!r}: its factory is a coroutine (async def), but must be a plain function "
            f"that returns an engine"
        )
    if inspect.isclass(engine):
        raise UsageError(
            f"engine {name!r}: its factory returned the class {engine.__name__}, but must return an "
            f"instance of it"
        )
    if not callable(getattr(engine, "generate", None)):
        raise UsageError(
            f"engine {name!r}: its factory returned a {type(engine).__name__} "
            f"without generate(requests)"
        )


def _read(name: str, engine: Engine, member: str, absent: object) -> object:
    """Returns an attribute, or `absent`. Raises `UsageError` if its property raises."""
    try:
        return getattr(engine, member)
    except AttributeError as error:
        if not hasattr(type(engine), member):
            return absent
        raised: Exception = error
    except Exception as error:
        raised = error
    text = f"reading {member} raised {type(raised).__name__}: {raised}"
    raise UsageError(f"engine {name!r}: {text}") from raised


def scheduling_delay_of(name: str, engine: Engine, capabilities: Set[Capability]) -> int:
    """Returns the declared delay in steps (`batchproof.api.DelayedEngine`); 0 without a declaration.

    Raises `UsageError` if it is no property, not 0 or 1, or 1 without the capability SCHEDULING.
    """
    declared = _read(name, engine, "scheduling_delay", 0)
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


def block_size_multiple_of(name: str, engine: Engine) -> int:
    """Returns what each size of a block is a multiple of (`batchproof.api.BlockedEngine`). Raises
    `UsageError`."""
    declared = _read(name, engine, "block_size_multiple", 1)
    if type(declared) is not int or declared < 1:
        raise UsageError(
            f"engine {name!r}: block_size_multiple is {declared!r}, but must be a whole number, at "
            f"least 1: what each size of a block is a multiple of"
        )
    return declared


def grammars_of(name: str, engine: Engine) -> TakenGrammars:
    """Returns the grammars that the engine takes (`batchproof.api.StructuredEngine`). Raises
    `UsageError`."""
    kinds = _read(name, engine, "grammar_kinds", frozenset(KINDS))
    ends = _read(name, engine, "grammar_ends", None)
    if not (isinstance(kinds, Set) and kinds and kinds <= {*KINDS}):
        raise UsageError(
            f"engine {name!r}: grammar_kinds is {kinds!r}, but must be a set of {', '.join(KINDS)}"
        )
    if ends is not None and not (isinstance(ends, Set) and ends and all(type(i) is int for i in ends)):
        raise UsageError(
            f"engine {name!r}: grammar_ends is {ends!r}, but must be a set of one token id or more"
        )
    return TakenGrammars(frozenset(kinds), None if ends is None else frozenset(ends))


def taken_fields_of(name: str, engine: Engine, capabilities: Set[Capability]) -> TakenFields:
    """Returns the fields of `SamplingParams` that the engine takes, with its limits
    (`batchproof.api.SelectiveEngine`).

    Raises `UsageError` if it declares one that none of its capabilities is about, or none of those
    that one of them is about, or limits of something else.
    """
    about = fields_of(capabilities)
    declared = _read(name, engine, "sampling_fields", about)
    if not isinstance(declared, Set):
        raise UsageError(
            f"engine {name!r}: sampling_fields is a {type(declared).__name__}, but must be a set of "
            f"fields of SamplingParams"
        )
    for each in sorted(map(str, declared - about)):
        raise UsageError(
            f"engine {name!r}: sampling_fields has {each!r}, but its capabilities are about "
            f"{', '.join(sorted(about)) or 'no field'}"
        )
    for each in sorted(capabilities & CHOOSING):
        needed = LEAST_FIELDS.get(each, fields_of({each}))
        if not declared & needed:
            raise UsageError(
                f"engine {name!r} declares {each}, which needs sampling_fields with "
                f"{' or '.join(sorted(needed))}"
            )
    return TakenFields(map(str, declared), _limits_of(name, engine, declared))


def _limits_of(name: str, engine: Engine, taken: Set[object]) -> SamplingLimits:
    limits = _read(name, engine, "sampling_limits", SamplingLimits())
    if not isinstance(limits, SamplingLimits):
        raise UsageError(
            f"engine {name!r}: sampling_limits is a {type(limits).__name__}, but must be of "
            f"SamplingLimits"
        )
    apart = {each for names in limits.apart for each in names} - {DRAFTS}
    for each in sorted({*limits.ranges, *limits.documented, *apart} - taken):
        raise UsageError(
            f"engine {name!r}: sampling_limits has {each!r}, but it takes "
            f"{', '.join(sorted(map(str, taken))) or 'no field'}"
        )
    for each, (low, high) in limits.ranges.items():
        plain = getattr(SamplingParams(), each)
        is_number = each == "logit_bias" or not isinstance(plain, frozenset | tuple)
        has_plain = not isinstance(plain, int | float) or low <= plain <= high
        if not (is_number and low <= high and has_plain):
            raise UsageError(
                f"engine {name!r}: sampling_limits has the range {low:g} to {high:g} of {each}, but a "
                f"range is of a number, from the least to the highest, with the default in it"
            )
    return limits


def _shown(engine: Engine, structural: Set[Capability], time_limit_s: float) -> frozenset[Capability]:
    """Returns the capabilities that the methods and one answer of the engine show."""
    found = set(structural)
    if {Capability.STEPPING, Capability.TRACING} <= found:
        found.add(Capability.SCHEDULING)
    try:
        with time_limit(time_limit_s, "the first generate"):
            (answer,) = engine.generate([PROBE])
            if answer.logits is not None:
                found.add(Capability.LOGITS)
    except Exception:  # the tests report better what is wrong
        pass
    return frozenset(found)


def _has(name: str, engine: Engine, capability: Capability) -> bool:
    members, absent = MEMBERS[capability], object()
    read = {member: _read(name, engine, member, absent) for member in members}
    missing = [member for member in members if read[member] is absent]
    # One method of several is a slip, not a choice.
    if missing and len(missing) < len(members) and "step" not in missing:
        raise UsageError(f"engine {name!r} has part of {capability}: it lacks {', '.join(missing)}")
    # A method is true whatever it would return: a forgotten @property.
    for member in {"has_unfinished", "trace"} & set(members):
        if not missing and callable(read[member]):
            raise UsageError(f"engine {name!r}: {member} must be a property, but is a method")
    if not isinstance(read.get("trace", ()), Sequence) and not missing:
        kind = type(read["trace"]).__name__
        raise UsageError(f"engine {name!r}: trace is a {kind}, but should be a sequence of StepRecords")
    return not missing


def _checked(name: str, given: object, structural: Set[Capability]) -> frozenset[Capability]:
    if not isinstance(given, Set):
        raise UsageError(
            f"engine {name!r}: capabilities is a {type(given).__name__}, but must be a "
            f"frozenset of batchproof.api.Capability"
        )
    declared: frozenset[object] = frozenset(given)
    unknown = [each for each in declared if each not in list(Capability)]
    if unknown:
        raise UsageError(
            f"engine {name!r} declares {unknown[0]!r}, which is no capability: {', '.join(Capability)}"
        )
    capabilities = frozenset(Capability(str(each)) for each in declared)
    for each in sorted(capabilities & PROTOCOLS.keys() - structural):
        members = MEMBERS[each]
        lacks = "an attribute of that name" if members == [each] else ", ".join(members)
        raise UsageError(f"engine {name!r} declares {each}, which needs {lacks}")
    for each, needed in NEEDS.items():
        lacking = sorted(needed - capabilities)
        if each in capabilities and lacking:
            raise UsageError(f"engine {name!r} declares {each}, which needs {', '.join(lacking)}")
    return capabilities
