"""A failure: a finding, the runs that show it, and what was under test. Complete when it is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from batchproof.api import Completion
from batchproof.findings.finding import Finding, Rule
from batchproof.promises import Promise
from batchproof.workload.workloads import Workload


@dataclass(frozen=True)
class Run:
    """One workload that an engine was given; `serial` tells the engines of a test apart."""

    serial: int
    workload: Workload
    completions: tuple[Completion, ...] = ()  # empty if it did not come to an end


@dataclass(frozen=True)
class Scene:
    """What must be done again to see a failure again: the runs on one engine, the failed one last."""

    runs: tuple[Run, ...]
    other: tuple[Run, ...] = ()  # the runs it was held against, where two were compared

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
    """`case`: the curated case it was found by, if any; `is_repeatable`: not if the same example went
    otherwise when it was played once more."""

    finding: Finding
    scene: Scene
    subject: Subject
    case: CaseNote | None = None
    is_repeatable: bool = True

    @property
    def promise(self) -> Promise:
        return self.finding.promise

    @property
    def rule(self) -> Rule:
        return self.finding.rule

    def in_case(self, case: CaseNote) -> Self:
        return replace(self, case=case)

    def under(self, promise: Promise, appeared: str) -> Self:
        """The same failure, counted for the promise of a relation; `appeared`: what was changed."""
        return replace(self, finding=self.finding.under(promise, appeared))
