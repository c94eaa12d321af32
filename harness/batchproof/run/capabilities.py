"""The capabilities of an engine: those it declares, or else those its methods show."""

import inspect
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

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
    *(Capability.PAUSING, Capability.SLEEPING, Capability.CACHE_CLEARING, Capability.WEIGHT_UPDATES)
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
    a capability's methods, declares a capability without having its methods, declares what cannot be,
    or has a property that raises.
    """
    with time_limit(2 * time_limit_s, "building the engine"):  # the first build imports a library
        engine = build(EngineConfig(return_logits=True))
    said = Declarations(name, engine)
    said.require_engine()
    with time_limit(time_limit_s, "reading what the engine declares"):
        rule = "a frozenset of batchproof.api.Capability"
        declared = said.declared("capabilities", None, lambda it: it is None or _is_set(it), rule)
        undeclared = LIFECYCLE if declared is None else LIFECYCLE - declared
        structural = {each for each in PROTOCOLS.keys() - undeclared if said.has(each)}
    if declared is None:
        capabilities = _shown(engine, structural, time_limit_s)
    else:
        capabilities = said.checked(declared, structural)
    said.scheduling_delay(capabilities)
    return Offer(
        capabilities, said.taken_fields(capabilities), said.block_size_multiple(), said.grammars()
    )


def _is_set(value: object) -> bool:
    return isinstance(value, Set)


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


class Declarations:
    """What an engine says of itself by its attributes. Raises `UsageError` for what cannot be."""

    def __init__(self, name: str, engine: Engine) -> None:
        self._name, self._engine = name, engine

    def _wrong(self, problem: str) -> UsageError:
        return UsageError(f"engine {self._name!r}: {problem}")

    def _read(self, member: str, absent: object) -> object:
        """Returns an attribute, or `absent`. Raises `UsageError` if its property raises."""
        try:
            return getattr(self._engine, member)
        except AttributeError as error:
            if not hasattr(type(self._engine), member):
                return absent
            raised: Exception = error
        except Exception as error:
            raised = error
        text = f"reading {member} raised {type(raised).__name__}: {raised}"
        raise self._wrong(text) from raised

    def _require(self, member: str, value: object, is_right: bool, rule: str) -> None:
        if callable(value):  # true whatever it would return: a forgotten @property
            raise self._wrong(f"{member} must be a property, but is a method")
        if not is_right:
            raise self._wrong(f"{member} is {value!r}, but must be {rule}")

    def declared(self, member: str, absent: object, is_right: Callable[[Any], bool], rule: str) -> Any:
        """Returns an attribute that is right, or `absent`. `rule` says what else it must be."""
        value = self._read(member, absent)
        self._require(member, value, not callable(value) and is_right(value), rule)
        return value

    def require_engine(self) -> None:
        """Requires that a factory has returned an engine."""
        engine: object = self._engine
        if inspect.iscoroutine(engine):
            engine.close()  # so that Python does not warn that it was never awaited
            is_one = "is a coroutine (async def), but must be a plain function that returns an engine"
        elif inspect.isclass(engine):
            is_one = f"returned the class {engine.__name__}, but must return an instance of it"
        elif not callable(getattr(engine, "generate", None)):
            is_one = f"returned a {type(engine).__name__} without generate(requests)"
        else:
            return
        raise self._wrong(f"its factory {is_one}")

    def has(self, capability: Capability) -> bool:
        """Returns whether the engine has the members of a capability."""
        members, absent = MEMBERS[capability], object()
        read = {member: self._read(member, absent) for member in members}
        missing = [member for member in members if read[member] is absent]
        # One method of several is a slip, not a choice.
        if missing and len(missing) < len(members) and "step" not in missing:
            raise self._wrong(f"it has part of {capability}: it lacks {', '.join(missing)}")
        for member in {"has_unfinished", "trace"} & {*members} if not missing else ():
            is_right = member != "trace" or isinstance(read[member], Sequence)
            self._require(member, read[member], is_right, "a sequence of StepRecords")
        return not missing

    def checked(self, declared: Set[object], structural: Set[Capability]) -> frozenset[Capability]:
        """Returns the capabilities declared, with what they need among those that members show."""
        for unknown in (each for each in declared if each not in list(Capability)):
            raise self._wrong(
                f"it declares {unknown!r}, which is no capability: {', '.join(Capability)}"
            )
        capabilities = frozenset(Capability(str(each)) for each in declared)
        for each in sorted(capabilities & PROTOCOLS.keys() - structural):
            members = MEMBERS[each]
            lacks = "an attribute of that name" if members == [each] else ", ".join(members)
            raise self._wrong(f"it declares {each}, which needs {lacks}")
        for each, needed in NEEDS.items():
            lacking = sorted(needed - capabilities)
            if each in capabilities and lacking:
                raise self._wrong(f"it declares {each}, which needs {', '.join(lacking)}")
        return capabilities

    def scheduling_delay(self, capabilities: Set[Capability]) -> int:
        """Returns the delay in steps (`batchproof.api.DelayedEngine`); 0 without a declaration. Any
        other needs the capability SCHEDULING."""
        rule = f"{' or '.join(map(str, DELAYS))}: the steps by which it reads a token late"
        delay: int = self.declared(
            "scheduling_delay", 0, lambda it: type(it) is int and it in DELAYS, rule
        )
        if delay and Capability.SCHEDULING not in capabilities:
            needs = f"{Capability.SCHEDULING}: nothing else is measured by it"
            raise self._wrong(f"it declares a scheduling_delay of {delay}, which needs {needs}")
        return delay

    def block_size_multiple(self) -> int:
        """Returns what each size of a block is a multiple of (`batchproof.api.BlockedEngine`)."""
        rule = "a whole number, at least 1: what each size of a block is a multiple of"
        found: int = self.declared(
            "block_size_multiple", 1, lambda it: type(it) is int and it >= 1, rule
        )
        return found

    def grammars(self) -> TakenGrammars:
        """Returns the grammars that the engine takes (`batchproof.api.StructuredEngine`)."""

        def are_ids(ends: object) -> bool:
            return isinstance(ends, Set) and bool(ends) and all(type(each) is int for each in ends)

        every, rule = frozenset(KINDS), f"a set of {', '.join(KINDS)}"
        kinds = self.declared(
            "grammar_kinds", every, lambda it: _is_set(it) and it and it <= every, rule
        )
        rule = "a set of one token id or more"
        ends = self.declared("grammar_ends", None, lambda it: it is None or are_ids(it), rule)
        return TakenGrammars(frozenset(kinds), None if ends is None else frozenset(ends))

    def taken_fields(self, capabilities: Set[Capability]) -> TakenFields:
        """Returns the fields of `SamplingParams` that the engine takes, with its limits
        (`batchproof.api.SelectiveEngine`): some of those that its capabilities are about, and of each
        capability one or more."""
        about = fields_of(capabilities)
        taken = self.declared("sampling_fields", about, _is_set, "a set of fields of SamplingParams")
        for each in sorted(map(str, taken - about)):
            those = ", ".join(sorted(about)) or "no field"
            raise self._wrong(f"sampling_fields has {each!r}, but its capabilities are about {those}")
        for each in sorted(capabilities & CHOOSING):
            needed = LEAST_FIELDS.get(each, fields_of({each}))
            if not taken & needed:
                least = " or ".join(sorted(needed))
                raise self._wrong(f"it declares {each}, which needs sampling_fields with {least}")
        return TakenFields(map(str, taken), self._limits(taken))

    def _limits(self, taken: Set[object]) -> SamplingLimits:
        limits: SamplingLimits = self.declared(
            "sampling_limits",
            SamplingLimits(),
            lambda it: isinstance(it, SamplingLimits),
            "of SamplingLimits",
        )
        apart = {each for names in limits.apart for each in names} - {DRAFTS}
        for each in sorted({*limits.ranges, *limits.documented, *apart} - taken):
            those = ", ".join(sorted(map(str, taken))) or "no field"
            raise self._wrong(f"sampling_limits has {each!r}, but it takes {those}")
        for each, (low, high) in limits.ranges.items():
            plain = getattr(SamplingParams(), each)
            is_number = each == "logit_bias" or not isinstance(plain, frozenset | tuple)
            has_plain = not isinstance(plain, int | float) or low <= plain <= high
            if not (is_number and low <= high and has_plain):
                raise self._wrong(
                    f"sampling_limits has the range {low:g} to {high:g} of {each}, but a range is of a "
                    f"number, from the least to the highest, with the default in it"
                )
        return limits
