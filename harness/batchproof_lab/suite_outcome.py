"""How a suite run searches, what it finds, and the pytest plugin that records it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import pytest

from batchproof.plugin.items import record_of
from batchproof.plugin.selection import LAB
from batchproof.records.trial_record import TrialRecord
from batchproof.run.laboratory import Laboratory
from batchproof_lab.conformance_modules import function_of


@dataclass(frozen=True, slots=True)
class Effort:
    """How a suite run searches. The default is a plain run without shrinking."""

    profile: str | None = None  # None: the current one
    max_examples: int | None = None  # None: the profile's
    shrinks: bool = False
    first: tuple[str, ...] = ()  # the test functions that run before all others, in this order


@dataclass(frozen=True, slots=True)
class Catch:
    """One failed test."""

    test: str
    promises: tuple[str, ...]  # the test checks these
    broken: str | None  # the promise the failure names; None: the harness itself broke
    report: str
    headline: str | None = None  # of that failure
    cause: str | None = None  # what the diagnosis names
    num_runs: int = 0  # workloads given to the engine until it was caught
    seconds: float = 0.0  # from the first test until then


@dataclass(slots=True)
class SuiteOutcome:
    """What a suite run found."""

    catches: list[Catch] = field(default_factory=list)
    num_passed: int = 0
    num_skipped: int = 0
    exit_status: int = 0
    output: str = ""
    totals: Counter[str] = field(default_factory=Counter)  # all ledgers added up
    seconds: float = 0.0  # of all its tests

    @property
    def first(self) -> Catch | None:
        """Returns the first failure that names a promise, or None."""
        return next((each for each in self.catches if each.broken is not None), None)


class Recorder:
    """Fills in the outcome while the session runs, in the laboratory that it is given."""

    def __init__(self, findings: SuiteOutcome, effort: Effort, lab: Laboratory | None) -> None:
        self.findings = findings
        self.effort = effort
        self.lab = lab

    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
        """Hands the laboratory to the session before the options are resolved."""
        if self.lab is not None:
            early_config.stash[LAB] = self.lab

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Puts tests first that the effort asks for."""
        rank = {name: place for place, name in enumerate(self.effort.first)}
        items.sort(key=lambda item: rank.get(function_of(item.nodeid), len(rank)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        """Measures how long the tests take, in seconds."""
        self.began = time.time()
        try:
            return (yield)
        finally:
            self.findings.seconds = time.time() - self.began

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        record = record_of(report)
        self.findings.num_passed += report.passed and report.when == "call"
        self.findings.num_skipped += report.skipped
        if report.when == "call" and record is not None:
            self.findings.totals.update(_counts(record))
        if report.failed:
            self._note(report, record)

    def _note(self, report: pytest.TestReport, record: TrialRecord | None) -> None:
        failure = record.failure if record else None
        self.findings.catches.append(
            Catch(
                test=report.nodeid,
                promises=record.promises if record else (),
                broken=failure.promise if failure else None,
                report=report.longreprtext,
                headline=failure.headline if failure else None,
                cause=failure.cause if failure else None,
                num_runs=self.findings.totals["num_runs"],
                seconds=report.stop - self.began,
            )
        )


def _counts(record: TrialRecord) -> dict[str, int]:
    """Returns the counts of a record that add up over tests."""
    ledger = asdict(record.ledger)
    return {name: value for name, value in ledger.items() if isinstance(value, int)}
