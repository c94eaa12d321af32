"""How a broken promise is told: one type, one page of text.

The first line says which promise, engine and model; then what was got and what should be; then the
workload, as YAML for `cases/` and ready to paste.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from batchproof.causes import Cause
from batchproof.promises import Promise

if TYPE_CHECKING:
    from batchproof.api import Completion
    from batchproof.checks.prefixes import Computed
    from batchproof.workload.workloads import Workload


@dataclass(frozen=True)
class Run:
    """One workload that an engine was given; `serial` tells the engines of a test apart."""

    serial: int
    workload: Workload
    completions: tuple[Completion, ...] = ()  # empty if it did not come to an end
    computed: tuple[Computed, ...] = ()  # what later runs may begin behind, where they may at all


@dataclass(frozen=True)
class Scene:
    """What must be done again to see a failure again: the runs on one engine, the failed one last."""

    runs: tuple[Run, ...]
    other: tuple[Run, ...] = ()  # the runs it was held against, where two were compared

    @property
    def workload(self) -> Workload:
        return self.runs[-1].workload

    @property
    def history(self) -> tuple[Workload, ...]:
        """What the same engine had served before."""
        return tuple(run.workload for run in self.runs[:-1])


class ConformanceFailure(AssertionError):
    """The engine broke a promise. `request_id` and `step`: where it shows first, if in an answer;
    `cause`: where the broken rule itself names it."""

    def __init__(
        self,
        promise: Promise,
        finding: str,
        evidence: Sequence[str] = (),
        request_id: str | None = None,
        step: int | None = None,
        cause: Cause | None = None,
    ) -> None:
        super().__init__(finding)
        self.promise = promise
        self.finding = finding
        self.evidence = list(evidence)
        self.request_id = request_id
        self.step = step
        self.cause = cause
        self.rule: str | None = None  # what found it, for `batchproof.repro` to look again
        self.facts: dict[str, Any] = {}  # what that rule must know
        # Filled in by the trial, who knows.
        self.diagnosis: list[str] = []  # the most likely cause, in words
        self.context: list[str] = []  # engine, model, workload
        self.scene: Scene | None = None

    def found_by(self, rule: str, **facts: Any) -> Self:
        """Name the rule that found it, unless a closer one has done so."""
        if self.rule is None:
            self.rule, self.facts = rule, facts
        return self

    def __str__(self) -> str:
        lines = [f"{self.promise} is broken: {self.finding}"]
        lines += [f"  {line}" for line in self.evidence]
        return "\n".join([*lines, *self.diagnosis, *self.context])


@contextmanager
def rule(name: str) -> Iterator[None]:
    """What fails inside was found by this rule. Also a decorator."""
    try:
        yield
    except ConformanceFailure as failure:
        failure.found_by(name)
        raise


class EngineRaised(ConformanceFailure):
    """The engine raised where it must answer: wrong and crashed are different results."""


@dataclass
class Ledger:
    """What was compared while one test ran; it ends up in the summary."""

    num_runs: int = 0  # workloads given to an engine, judged or not
    num_workloads: int = 0  # judged
    num_requests: int = 0
    num_steps: int = 0  # tokens compared
    num_near_ties: int = 0  # of those, proven near-ties
    num_logits: int = 0  # answers whose logits were compared as well
    error_unit: float | None = None  # E of the model, once it was needed
    release: str | None = None  # the engine's name and version, if it says so
    precision: str = ""  # declared for the engine; empty: that of the model
    conventions: list[str] = field(default_factory=list)  # and settings, in the engine's own words
    notes: list[str] = field(default_factory=list)
