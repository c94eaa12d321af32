"""The verdict on each conformance test, in the words of its promise.

It fails closed. A test that compared nothing fails. A missing right answer fails as the harness's own
error.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis.errors import FailedHealthCheck, Unsatisfiable

from batchproof.errors import OracleError, UsageError
from batchproof.findings.finding import Rule, found
from batchproof.findings.finding_text import first_line
from batchproof.plugin.entering import enter
from batchproof.plugin.failing import NOTED, concluded, described, failure_of
from batchproof.plugin.item_names import again
from batchproof.plugin.promise_table import RECORD, describe_for_junit, record_of
from batchproof.plugin.xfails import forget_known, is_known, known_failure_of
from batchproof.requirements.promises import Promise
from batchproof.run.failures import ConformanceFailure, HangFailure

Noted = dict[str, Any]  # the test record while it is filled in, as JSON


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replaces the report of a conformance test by the verdict in the words of its promise."""
    if call.excinfo is not None and isinstance(call.excinfo.value, ConformanceFailure | HangFailure):
        call.excinfo.traceback = call.excinfo.traceback[-1:]  # slow to format, and replaced below
    report = yield
    noted = item.stash.get(NOTED, None)
    if noted is None:
        return report
    vars(report)[RECORD] = noted
    described(item, noted)
    if call.excinfo is None:
        _conclude_pass(item, report, noted)
    elif report.failed or is_known(report):
        _conclude_failure(item, report, noted, call.excinfo.value)
    if report.when == "teardown":
        describe_for_junit(report)
    return report


def _conclude_pass(item: pytest.Item, report: pytest.TestReport, noted: Noted) -> None:
    """Fails a known failure that passes, and a test that passed without comparing anything."""
    known, record = known_failure_of(item), record_of(report)
    assert record is not None, "it was there a moment ago"
    missing = [what for what, did_happen in record.has_happened.items() if not did_happen]
    if report.failed and known:
        noted["is_stale"] = True
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
