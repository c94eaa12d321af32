"""Run conformance tests against one engine from within Python, and say what they found.

Used by the self-test that every planted fault is caught. Failures are not shrunk: a hunt asks
whether the suite finds a fault, not for the smallest example of it.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import Phase, settings

CONFORMANCE = Path(__file__).resolve().parent.parent / "tests" / "conformance"
HUNT_PROFILE = "hunt"  # a name the nested session may load; made from the current profile


@dataclass(frozen=True, slots=True)
class Catch:
    """One failed test."""

    test: str
    promises: tuple[str, ...]  # the test checks these
    broken: str | None  # the promise the failure names; None: the harness itself broke
    report: str


@dataclass(slots=True)
class Findings:
    """What a hunt saw."""

    catches: list[Catch] = field(default_factory=list)
    num_passed: int = 0
    num_skipped: int = 0
    exit_status: int = 0
    output: str = ""


class _Recorder:
    def __init__(self, findings: Findings) -> None:
        self.findings = findings

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.findings.num_passed += report.passed and report.when == "call"
        self.findings.num_skipped += report.skipped
        if report.failed:
            record = dict(report.user_properties).get("batchproof", {})
            assert isinstance(record, dict), "the trial fixture puts a dict there"
            catch = Catch(
                report.nodeid,
                tuple(record.get("promises", ())),
                record.get("broken"),
                report.longreprtext,
            )
            self.findings.catches.append(catch)


@contextmanager
def fresh_tests() -> Iterator[None]:
    """Import the conformance tests anew inside: they keep the profile they were imported under."""

    def loaded() -> dict[str, ModuleType]:
        return {
            name: module
            for name, module in sys.modules.items()
            if Path(getattr(module, "__file__", None) or "/").is_relative_to(CONFORMANCE)
        }

    outer = loaded()
    for name in outer:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(outer)


def hunt(engine: str, arguments: Sequence[str] = ()) -> Findings:
    """Run `tests/conformance` on the engine, with more pytest arguments such as `-x` or `-m`."""
    findings = Findings()
    outer_profile = settings.get_current_profile_name()
    settings.register_profile(
        HUNT_PROFILE,
        settings.get_profile(outer_profile),
        phases=[Phase.explicit, Phase.generate],
        database=None,
    )
    command = [str(CONFORMANCE), f"--engine={engine}", f"--hypothesis-profile={HUNT_PROFILE}"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    with fresh_tests(), io.StringIO() as output, redirect_stdout(output), redirect_stderr(output):
        try:
            findings.exit_status = int(pytest.main(command, plugins=[_Recorder(findings)]))
        finally:
            settings.load_profile(outer_profile)
        findings.output = output.getvalue()
    return findings
