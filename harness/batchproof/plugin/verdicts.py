"""The verdict on each conformance test, in the words of its promise, and the record of the test.

It fails closed. A test that compared nothing fails. A missing right answer fails as the harness's own
error.
"""

import time
import traceback
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from shlex import quote

import pytest
from hypothesis.errors import FailedHealthCheck, Flaky, Unsatisfiable

from batchproof.cases.schema import Case
from batchproof.checks.broken import BrokenPromise
from batchproof.checks.happened import OWN_CHOICE
from batchproof.diagnosis.diagnose import diagnose
from batchproof.errors import EngineHang, OracleError, UsageError
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.finding import Failure, Rule, found
from batchproof.findings.finding_text import failure_text, first_line
from batchproof.plugin.failure_record import record_failure
from batchproof.plugin.items import IDENTITY, again, attach_record
from batchproof.plugin.trials import TRIAL
from batchproof.plugin.xfails import forget_known, is_known, known_failure_of
from batchproof.records.trial_record import TrialRecord
from batchproof.replay.record import write
from batchproof.requirements.promises import Promise
from batchproof.run.call_notes import notes
from batchproof.run.engine_names import COMMAND_PREFIX
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.time_limit import contained
from batchproof.run.trial import Trial


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replaces the report of a conformance test by the verdict in the words of its promise. The report
    that ends the test carries its record."""
    if call.excinfo is not None and isinstance(call.excinfo.value, ConformanceFailure | HangFailure):
        call.excinfo.traceback = call.excinfo.traceback[-1:]  # slow to format, and replaced below
    report = yield
    if IDENTITY not in item.stash:
        return report
    if report.when == "call" or not report.passed:
        error = call.excinfo.value if call.excinfo else None
        attach_record(report, _judge(item, report, error))
    return report


def _judge(item: pytest.Item, report: pytest.TestReport, error: BaseException | None) -> TrialRecord:
    """Returns the record of a test that has ended, and turns its report into the verdict."""
    record, trial = item.stash[IDENTITY], item.stash.get(TRIAL, None)
    if trial is not None:  # its counts as they are now: a diagnosis adds to them
        trial.note_unshown()
        happened = dict(trial.has_happened)
        ledger = replace(trial.ledger, seconds=time.monotonic() - trial.began)
        record = replace(record, ledger=ledger, has_happened=happened)
    if error is None:
        return _judge_pass(item, report, record, trial)
    if not (report.failed or is_known(report)):
        return record
    own = _own_failure(error)
    if own is not None:
        return _blame_harness(report, record, own, isinstance(error, UsageError))
    failure = failure_of(error, trial)
    if failure is not None:
        record, text = _explained(item, failure, trial, record)
        report.longrepr = "\n".join([text, again(item)])
        return record
    if report.when != "call":
        forget_known(report)
    return record


def _judge_pass(
    item: pytest.Item, report: pytest.TestReport, record: TrialRecord, trial: Trial | None
) -> TrialRecord:
    """Fails a known failure that passes, and a test that passed without comparing anything."""
    known = known_failure_of(item)
    unshown = [what for what, did_happen in record.has_happened.items() if not did_happen]
    missing = [what for what in unshown if what not in OWN_CHOICE]
    if report.failed and known:
        words = "this known failure passes now, so take the entry out"
        report.longrepr = f"{known.place}: {words} ({known.reason})"
        return replace(record, is_stale=True)
    if not report.passed:
        return record
    if missing and trial is not None:
        report.outcome = "failed"
        promise = Promise[record.promises[0]]
        finding = found(Rule.NEVER_HAPPENED, promise=promise, what=missing[0])
        report.longrepr = first_line(finding)
        return replace(record, failure=record_failure(trial.failure(finding)))
    if not record.ledger.num_requests:
        report.outcome = "failed"
        text = "this test passed without comparing anything: it proves nothing"
        return _blame_harness(report, record, text)
    return record


def failure_of(error: BaseException, trial: Trial | None) -> Failure | None:
    """Returns the engine's failure that the exception carries, or None.

    Hypothesis raises a group of exceptions if the last replay of an example differs from its first
    run, and complains of the strategy if a replay draws on where the run before it had failed.
    """
    if isinstance(error, BaseExceptionGroup):
        carried = (failure_of(each, trial) for each in error.exceptions)
        first = next((each for each in carried if each is not None), None)
        return first and replace(first, is_repeatable=False)
    if trial is not None and isinstance(error, Flaky):
        return trial.last_failure and replace(trial.last_failure, is_repeatable=False)
    if isinstance(error, ConformanceFailure | HangFailure):
        return error.failure
    if trial is not None and isinstance(error, BrokenPromise):
        return trial.failure(error.finding, others=error.others)
    if trial is not None and isinstance(error, EngineHang):
        return trial.failure(found(Rule.HANG, what=error.what, evidence=error.evidence))
    return None


def _explained(
    item: pytest.Item, failure: Failure, trial: Trial | None, record: TrialRecord
) -> tuple[TrialRecord, str]:
    """Returns the record with the failure, and its report, with cause and failure file. Looking for
    them may end the process, so both are noted without them before."""
    bare, text = replace(record, failure=record_failure(failure)), failure_text(failure)
    if trial is None:  # there is no engine to run again
        return bare, text
    get = item.config.getoption
    notes().change(record=bare, report=text)
    diagnosis = diagnosis_of(failure, trial, get("--diagnose-for"))
    path, words = replay_of(failure, trial, get("--repro") or "", item.nodeid, _short_name(item))
    report = "\n".join([failure_text(failure, diagnosis), *words])
    return replace(record, failure=record_failure(failure, diagnosis, path)), report


def _short_name(item: pytest.Item) -> str:
    """Returns the name of the case if the test runs one, else that of the test."""
    assert isinstance(item, pytest.Function), "conformance tests are functions"
    case = item.callspec.params.get("case")
    return case.name if isinstance(case, Case) else item.originalname.removeprefix("test_")


def _own_failure(error: BaseException) -> str | None:
    """Returns what went wrong if it is not the engine: a wrong case, no example, no right answer."""
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, (Unsatisfiable, FailedHealthCheck)):
        return f"no examples: this test proves nothing, because Hypothesis says: {error}"
    return str(error) if isinstance(error, OracleError) else None


def _blame_harness(
    report: pytest.TestReport, record: TrialRecord, text: str, is_wrong_input: bool = False
) -> TrialRecord:
    """Reports a failure of the harness: the engine broke no promise, and no list of known failures
    excuses it."""
    forget_known(report)
    report.longrepr = text
    return replace(record, promises=(), is_own_failure=True, is_wrong_input=is_wrong_input)


def diagnosis_of(failure: Failure, trial: Trial, limit_s: float) -> Diagnosis | None:
    """Returns the most likely cause, or None if the run does not ask for it or the engine hung at first
    contact."""
    if not limit_s or trial.spec.name in trial.lab.lost:
        return None
    try:
        with contained():
            return diagnose(trial, failure, limit_s)
    except (Exception, EngineHang) as slip:  # whatever it is, the verdict stands
        return Diagnosis(Cause.UNKNOWN, f"the diagnosis itself failed: {type(slip).__name__}: {slip}")


def replay_of(
    failure: Failure, trial: Trial, folder: str, test: str, name: str
) -> tuple[str | None, list[str]]:
    """Writes the failure file into the folder, if there is one. Returns its path and the line of the
    report about it, which tells an error in writing: that must not hide the failure itself."""
    if not folder:
        return None, []
    try:
        path = write(trial, failure, Path(folder).resolve(), test, name)
    except Exception as trouble:
        where = traceback.extract_tb(trouble.__traceback__)[-1]
        what = f"{type(trouble).__name__}: {trouble} ({where.filename}:{where.lineno})"
        return None, [f"replay: none, because writing it raised {what}"]
    words = f"replay: python -m batchproof replay {quote(str(path))}"
    file, suffix, rest = trial.spec.name.partition(".py:")
    if suffix and not trial.spec.name.startswith(COMMAND_PREFIX):  # relative to this folder
        words += f" --engine={quote(f'{Path(file).resolve()}{suffix}{rest}')}"
    if not trial.subject.is_embedded and (model := Path(trial.subject.name)).exists():
        words += f" --model={quote(str(model.resolve()))}"
    return str(path), [words]
