"""How a session ends: failures in the words of the promises, and a table engine x promise.

It fails closed. A test that compared nothing fails. A missing right answer fails as the harness's own
error. A session fails if it compared nothing at all, or only tokens of a model that could not have
shown a fault.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis.errors import FailedHealthCheck, Unsatisfiable

from batchproof.errors import OracleError, UsageError
from batchproof.findings.finding import Rule, found
from batchproof.findings.finding_text import first_line
from batchproof.plugin.failing import concluded, described, enter, failure_of
from batchproof.plugin.item_names import again
from batchproof.plugin.promise_table import (
    RECORD,
    Outcome,
    adequacies,
    error_units,
    notes,
    num_compared,
    outcomes_of,
    record_of,
    table,
)
from batchproof.plugin.selection import SELECTION
from batchproof.plugin.xfails import forget_known, is_known, known_failure_of
from batchproof.promises import Promise
from batchproof.run.failures import ConformanceFailure, HangFailure

NOTHING_COMPARED = "NOTHING WAS COMPARED: this run proves nothing about any engine"


Noted = dict[str, Any]  # the test record while it is filled in, as JSON


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replaces the report of a conformance test by the verdict in the words of its promise."""
    if call.excinfo is not None and isinstance(call.excinfo.value, ConformanceFailure | HangFailure):
        call.excinfo.traceback = call.excinfo.traceback[-1:]  # slow to format, and replaced below
    report = yield
    noted = dict(item.user_properties).get(RECORD)
    if noted is None:
        return report
    assert isinstance(noted, dict), "the trial fixture puts a dict there"
    described(item, noted)
    if call.excinfo is None:
        _conclude_pass(item, report, noted)
    elif report.failed or is_known(report):
        _conclude_failure(item, report, noted, call.excinfo.value)
    return report


def _conclude_pass(item: pytest.Item, report: pytest.TestReport, noted: Noted) -> None:
    """Fails a known failure that passes, and a test that passed without comparing anything."""
    known, record = known_failure_of(item), record_of(report)
    assert record is not None, "it was there a moment ago"
    missing = [what for what, did_happen in record.has_happened.items() if not did_happen]
    if report.failed and known:
        report.longrepr = known.is_no_more
    elif report.passed and report.when == "call" and missing:
        report.outcome = "failed"
        promise = Promise[record.promises[0]]
        finding = found(Rule.NEVER_HAPPENED, promise=promise, what=missing[0])
        enter(noted, finding)
        report.longrepr = first_line(finding)
    elif report.passed and report.when == "call" and not record.ledger.num_requests:
        report.outcome = "failed"
        _report_own(report, noted, "this test passed without comparing anything: it proves nothing")


def _conclude_failure(
    item: pytest.Item, report: pytest.TestReport, noted: Noted, error: BaseException
) -> None:
    own, failure = _own_failure(error), failure_of(item, error)
    if own is not None:
        noted["is_wrong_input"] = isinstance(error, UsageError)
        _report_own(report, noted, own)
    elif failure is not None:
        report.longrepr = f"{concluded(item, failure, noted)}\n{again(item)}"
    elif report.when != "call":
        forget_known(report)


def _own_failure(error: BaseException) -> str | None:
    """Returns what went wrong if the engine is not at fault: a wrong case, no example, no right
    answer.
    """
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, (Unsatisfiable, FailedHealthCheck)):
        return f"no examples: this test proves nothing, because Hypothesis says: {error}"
    return str(error) if isinstance(error, OracleError) else None


def _report_own(report: pytest.TestReport, noted: Noted, text: str) -> None:
    """Reports a failure of the harness: the engine broke no promise, and no list of known failures
    excuses it.
    """
    forget_known(report)
    noted["promises"] = []
    noted["is_own_failure"] = True
    report.longrepr = text


def _session_outcomes(config: pytest.Config) -> list[Outcome]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return []
    kinds = ("passed", "failed", "error", "skipped", "xfailed")
    return list(outcomes_of(report for kind in kinds for report in reporter.stats.get(kind, ())))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Sets the exit status to failed if nothing, or too little, was compared, and to a usage error if
    nothing failed but wrong cases.
    """
    if hasattr(session.config, "workerinput"):
        return  # an xdist worker: its controller judges the whole
    outcomes = _session_outcomes(session.config)
    is_clean = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    proves_little = not num_compared(outcomes) or any(record.is_inadequate for _, record in outcomes)
    if outcomes and is_clean and proves_little:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    num_wrong = sum(record.is_wrong_input for _, record in outcomes)
    if num_wrong and num_wrong == session.testsfailed:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the table engine x promise and what limits its meaning."""
    outcomes = _session_outcomes(terminalreporter.config)
    if not outcomes:
        _report_empty_selection(terminalreporter)
        return
    write = terminalreporter.write_line
    terminalreporter.section("Batchproof: engine x promise")
    for line in table(outcomes):
        write(line)
    for model, error_unit in error_units(outcomes):
        write(f"model {model}: E {error_unit:.2g}, the reference's own worst logit error")
    for model, adequacy, is_too_little in adequacies(outcomes):
        verdict = "INADEQUATE: equal tokens prove little on this model" if is_too_little else "adequate"
        write(f"model {model}: {verdict}; {adequacy}", red=is_too_little)
    for note in notes(outcomes):
        write(f"note: {note}")
    num_wrong = sum(record.is_wrong_input for _, record in outcomes)
    if num_wrong:
        write(f"{num_wrong} failed by a wrong case, not by an engine: see above", red=True)
    if num_own := sum(record.is_own_failure for _, record in outcomes) - num_wrong:
        write(f"{num_own} failed by the harness itself, not by an engine: see above", red=True)
    if not num_compared(outcomes) and not any(outcome == "failed" for outcome, _ in outcomes):
        write(NOTHING_COMPARED, red=True, bold=True)


def _report_empty_selection(terminalreporter: pytest.TerminalReporter) -> None:
    """Reports that -k and -m left no conformance test; pytest itself prints only what it deselected."""
    option = terminalreporter.config.option
    chosen = [f"{k} {v!r}" for k, v in (("-k", option.keyword), ("-m", option.markexpr)) if v]
    did_run = any(terminalreporter.stats.get(kind) for kind in ("passed", "failed", "error", "skipped"))
    left_out = terminalreporter.stats.get("deselected", ())
    if terminalreporter.config.stash[SELECTION].bench is not None and did_run:
        return
    if terminalreporter.stats.get("error"):  # of a file that could not be collected: it is printed
        return
    if chosen and (not did_run or any("trial" in item.fixturenames for item in left_out)):
        words = f"no conformance test was selected by {' '.join(chosen)}: this run proves nothing"
        terminalreporter.write_line(words, red=not did_run)
