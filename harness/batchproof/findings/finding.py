"""What a check finds: a broken promise, the rule that shows it, and the facts, as values without
text; and a failure: a finding, the runs that show it, and what was under test.

`findings.finding_text` renders a finding; nothing reads the rendered text back.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

from batchproof.api import Completion
from batchproof.findings.rules import Facts as Facts  # noqa: PLC0414
from batchproof.findings.rules import Rule as Rule  # noqa: PLC0414
from batchproof.requirements.promises import Promise
from batchproof.workload.workloads import Workload

Fact = None | bool | int | float | str | tuple["Fact", ...]


@dataclass(frozen=True)
class Finding:
    """A broken promise.

    `request_id` and `step` say where it shows first, if that is known; the rule decides whether
    `step` is an output step of the request or a step of the engine. `facts` are those that the rule
    declares, as JSON values: NaN and infinities are the texts "nan", "inf" and "-inf". `appeared` is
    what was changed before, where a relation between runs found it. Raises `TypeError` for other facts.
    """

    promise: Promise
    rule: Rule
    request_id: str | None = None
    step: int | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    appeared: str | None = None

    def __post_init__(self) -> None:
        facts = {name: _frozen(value) for name, value in self.facts.items()}
        self.rule.require_facts(facts)
        object.__setattr__(self, "facts", MappingProxyType(facts))

    def under(self, promise: Promise, appeared: str | None = None) -> Self:
        """Returns the same finding, counted for another promise."""
        return replace(self, promise=promise, appeared=appeared or self.appeared)


def found(
    rule: Rule,
    request_id: str | None = None,
    step: int | None = None,
    promise: Promise | None = None,
    **facts: Any,
) -> Finding:
    """Returns a finding of the rule's own promise, unless another is given. Raises `TypeError` for a
    fact that the rule does not take, that is missing, or of another type than declared."""
    return Finding(promise or rule.promise, rule, request_id, step, facts)


def thawed(fact: Fact) -> Any:
    """Returns the fact with lists in place of tuples."""
    return [thawed(each) for each in fact] if isinstance(fact, tuple) else fact


def _frozen(value: Any) -> Fact:
    if isinstance(value, list | tuple):
        return tuple(_frozen(each) for each in value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a fact is {value!r} of type {type(value).__name__}, but must be a JSON value")


@dataclass(frozen=True)
class Run:
    """One workload that an engine was given; `serial` distinguishes the engines of a test."""

    serial: int
    workload: Workload
    completions: tuple[Completion, ...] = ()  # empty if the run did not end


@dataclass(frozen=True)
class Scene:
    """The runs that reproduce a failure on one engine, the failed one last."""

    runs: tuple[Run, ...]
    other: tuple[Run, ...] = ()  # the runs compared with those, if any

    @property
    def workload(self) -> Workload:
        return self.runs[-1].workload

    @property
    def has_lifecycle(self) -> bool:
        return any(each.workload.has_lifecycle for each in (*self.runs, *self.other))


@dataclass(frozen=True)
class Subject:
    """What was under test. `precision` is empty where the engine computes as the model does."""

    engine: str
    release: str | None
    model: str
    device: str
    dtype: str
    precision: str = ""


@dataclass(frozen=True)
class CaseNote:
    """The curated case that was run, and why it exists."""

    name: str
    place: str  # file:line
    why: str
    link: str | None = None


@dataclass(frozen=True)
class Failure:
    """A finding with all that is known of it.

    `finding` decides promise and verdict; `others` are what the same checks found besides, the first of
    each further rule. `case` is the curated case that found it, if any; `is_repeatable` is False if the
    same example gave another result when it was run again.
    """

    finding: Finding
    scene: Scene
    subject: Subject
    case: CaseNote | None = None
    is_repeatable: bool = True
    others: tuple[Finding, ...] = ()

    @property
    def promise(self) -> Promise:
        return self.finding.promise

    @property
    def rule(self) -> Rule:
        return self.finding.rule

    def under(self, promise: Promise, appeared: str) -> Self:
        """Returns the same failure, counted for the promise of a relation; `appeared` is what was
        changed."""
        return replace(self, finding=self.finding.under(promise, appeared))
