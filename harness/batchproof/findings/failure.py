"""A failure: a finding, the runs that show it, and what was under test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from batchproof.api import Completion
from batchproof.findings.finding import Finding, Rule
from batchproof.requirements.promises import Promise
from batchproof.workload.workloads import Workload


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

    def in_case(self, case: CaseNote) -> Self:
        return replace(self, case=case)

    def under(self, promise: Promise, appeared: str) -> Self:
        """Returns the same failure, counted for the promise of a relation; `appeared` is what was
        changed."""
        return replace(self, finding=self.finding.under(promise, appeared))
