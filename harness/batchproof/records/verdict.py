"""The verdict on one engine, as `judge` and `--verdict` write it: everything that its page states."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance
from batchproof.records.table import Totals
from batchproof.records.trial_record import FailureRecord

IssueKind = Literal["defect", "documented"]
Verdict = Literal[  # on a promise; on the whole the worst of them, and never one of the second group
    "broken",
    "incomplete",  # some tests were not run
    "undecided",  # some tests were ended by another promise that broke, or by the harness
    "known failures",
    "differs by design",
    "held",
    "untested",
    "no cap",  # why nothing was tested
    "refused",
    "inadequate",
    "skipped",
]
RequirementOutcome = Literal[
    "held",
    "failed",
    "known",  # failed, as expected
    "no capability",
    "refused",  # the engine does not serve the model
    "inadequate",  # passed on a model that could not show a fault
    "error",  # the harness failed, or the test did not say why it ended
    "not run",  # in a cell of a matrix
]


@dataclass(frozen=True)
class PromiseResult:
    """One promise, and tests by outcome."""

    verdict: Verdict
    passed: int = 0
    failed: int = 0
    no_cap: int = 0  # the engine lacks a capability
    known: int = 0  # failed, as expected
    undecided: int = 0  # ended by another promise that broke, or by the harness


@dataclass(frozen=True)
class SuiteStamp:
    """The suite that judged."""

    version: str
    digest: str


@dataclass(frozen=True)
class Conditions:
    """Under which a run was made. Those of a judgement are in its options alone."""

    options: tuple[str, ...] = ()  # of pytest, with which the same tests run again
    models: tuple[str, ...] = ()
    device: str = ""
    dtype: str = ""
    profile: str = ""  # of Hypothesis: how many workloads a test generates


@dataclass(frozen=True)
class RequirementFailure:
    """A requirement that is not held, and how to see it again."""

    requirement: str
    headline: str
    command: str
    failure: FailureRecord | None  # none: the harness itself failed


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
    The shortest report is shown."""

    title: str
    promises: tuple[str, ...]  # none: the process ended, or the harness itself failed
    tests: tuple[str, ...]  # functions, with the curated case where there is one
    models: tuple[str, ...]
    num_tests: int
    shown_test: str  # node id
    shown_report: str
    failure: FailureRecord | None = None  # that of the report
    issue: IssueRecord | None = None
    replays: tuple[str, ...] = ()  # what became of each time its failure was run again, alone

    @property
    def is_documented(self) -> bool:
        """Returns whether a documented convention explains the group."""
        return self.issue is not None and self.issue.is_documented


@dataclass(frozen=True)
class EngineVerdict:
    """A verdict. `held`, `broken`, `differing` and `untested` are promise ids; what differs is
    documented."""

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
    verdict: Verdict
    suite: SuiteStamp
    conditions: Conditions
    outcomes: Mapping[str, RequirementOutcome]  # by requirement id
    failures: tuple[RequirementFailure, ...]

    @property
    def defects(self) -> tuple[FailureGroup, ...]:
        """Returns all groups that are not documented, including a process that ended."""
        return tuple(group for group in self.groups if not group.is_documented)


VERDICT = FileKind("verdict", "batchproof.verdict", 3, EngineVerdict)
