"""The verdict on one engine: everything that its page states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance
from batchproof.records.table import Totals
from batchproof.records.trial_record import FailureRecord

IssueKind = Literal["defect", "documented"]


@dataclass(frozen=True)
class PromiseResult:
    """One promise: held, broken, differs by design, or why nothing was tested; and tests by outcome."""

    verdict: str
    passed: int = 0
    failed: int = 0
    no_cap: int = 0  # the engine lacks a capability


@dataclass(frozen=True)
class IssueRecord:
    """What is known of a failure: its cause, public threads, scripts that show it."""

    title: str
    kind: IssueKind
    cause: str
    threads: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()  # as seen from the folder of all verdicts

    @property
    def is_documented(self) -> bool:
        """Returns whether the engine's documentation states the behaviour."""
        return self.kind == "documented"


@dataclass(frozen=True)
class FailureGroup:
    """All failures that one known issue explains, else those of one test that broke the same promise.

    The shortest report is shown.
    """

    title: str
    promises: tuple[str, ...]  # none: the process ended, or the harness itself failed
    tests: tuple[str, ...]  # functions, with the curated case where there is one
    models: tuple[str, ...]
    num_tests: int
    shown_test: str  # node id
    shown_report: str
    failure: FailureRecord | None = None  # that of the report
    issue: IssueRecord | None = None
    num_unnamed: int = 0  # tests besides, which verdicts of before 2026-11-22 only counted
    replays: tuple[str, ...] = ()  # what became of each time its failure file was run alone

    @property
    def is_documented(self) -> bool:
        """Returns whether a documented convention explains the group."""
        return self.issue is not None and self.issue.is_documented


@dataclass(frozen=True)
class EngineVerdict:
    """A verdict. `held`, `broken`, `differing` and `untested` are promise ids; what differs is
    documented.
    """

    title: str
    engine: str  # as the command line names it
    release: str | None  # its name and version in its own words
    precision: str  # that was declared for it; empty: that of the model
    conventions: tuple[str, ...]  # and settings, in its own words
    promises: Mapping[str, PromiseResult]  # by id, in the order of the promises
    held: tuple[str, ...]
    broken: tuple[str, ...]
    differing: tuple[str, ...]
    untested: tuple[str, ...]
    totals: Totals
    groups: tuple[FailureGroup, ...]
    unshown: tuple[IssueRecord, ...]  # known of this release, and no test of this run shows them
    skips: Mapping[str, int]  # reason -> tests
    suite_command: str  # the run of the suite
    made: Provenance
    is_complete: bool

    @property
    def defects(self) -> tuple[FailureGroup, ...]:
        """Returns all groups that are not documented, including a process that ended."""
        return tuple(group for group in self.groups if not group.is_documented)


VERDICT = FileKind("verdict", "batchproof.verdict", 1, EngineVerdict)
