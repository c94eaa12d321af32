"""What a failed test produces: its text, its most likely cause, its entry in the test's record, and its
failure file. The diagnosis runs after the verdict, which it never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from batchproof.checks.broken import BrokenPromise
from batchproof.diagnosis import diagnose
from batchproof.errors import EngineHang
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.failure import Failure
from batchproof.findings.failure_text import failure_text
from batchproof.findings.finding import Rule, found
from batchproof.plugin.entering import enter
from batchproof.plugin.item_names import again, name_of
from batchproof.plugin.repro import replay_file
from batchproof.plugin.xfails import known_failure_of
from batchproof.run.call_notes import notes
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.time_limit import contained
from batchproof.run.trial import Trial

TRIAL = pytest.StashKey[Trial]()  # there even if the `trial` fixture fails
NOTED = pytest.StashKey[dict[str, Any]]()  # the test record while it is filled in, as JSON


def begin_note(item: pytest.Item, trial: Trial, record: dict[str, Any]) -> None:
    """Notes the test, for its report if the engine takes the process along."""
    described(item, record)
    known = known_failure_of(item)
    notes().change(
        engine=trial.spec.name,
        model=trial.subject.name,
        subject=trial.under_test,
        workload=None,
        record=record,
        report="",
        again=again(item),
        known=known and known.reason,
    )


def failure_of(item: pytest.Item, error: BaseException) -> Failure | None:
    """Returns the engine's failure that the exception carries, or None.

    Hypothesis raises a group of exceptions if the last replay of an example differs from its first
    run.
    """
    if isinstance(error, BaseExceptionGroup):
        carried = (failure_of(item, each) for each in error.exceptions)
        first = next((each for each in carried if each is not None), None)
        return first and replace(first, is_repeatable=False)
    if isinstance(error, ConformanceFailure | HangFailure):
        return error.failure
    trial = item.stash.get(TRIAL, None)
    if trial is not None and isinstance(error, BrokenPromise):
        return trial.failure(error.finding)
    if trial is not None and isinstance(error, EngineHang):
        return trial.failure(found(Rule.HANG, what=error.what, evidence=error.evidence))
    return None


def concluded(item: pytest.Item, failure: Failure, record: dict[str, Any]) -> str:
    """Diagnoses the failure, writes its file if that is asked for, and notes both in the test's
    record.

    Returns the text of the report.
    """
    trial, requests = item.stash[TRIAL], failure.scene.workload.requests
    case = failure.case.name if failure.case else None
    enter(record, failure.finding, case, requests=requests)
    notes().change(record=record, report=failure_text(failure))  # the diagnosis may be the end of us
    diagnosis = _diagnosis(item.config, trial, failure)
    replay = replay_file(item, trial, failure)
    path = None if replay is None else replay.path
    enter(record, failure.finding, case, diagnosis, path, requests)
    text = failure_text(failure, diagnosis)
    return text if replay is None else f"{text}\n{replay.words}"


def _diagnosis(config: pytest.Config, trial: Trial, failure: Failure) -> Diagnosis | None:
    """Returns the most likely cause, or None if the run does not ask for it."""
    limit_s = config.getoption("--diagnose-for")
    if not limit_s or trial.spec.name in trial.lab.lost:  # an engine that nobody can speak to
        return None
    try:
        with contained():
            return diagnose(trial, failure, limit_s)
    except (Exception, EngineHang) as slip:  # whatever it is, the verdict stands
        return Diagnosis(Cause.UNKNOWN, f"the diagnosis itself failed: {type(slip).__name__}: {slip}")


def described(item: pytest.Item, record: dict[str, Any]) -> None:
    """Notes which test it is: its function, and its parameters except engine, model and case."""
    given: Mapping[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    record["name"] = name_of(item)
    record["function"] = getattr(item, "originalname", item.name)
    record["parameters"] = {
        name: value for name, value in given.items() if isinstance(value, str | int | float)
    }
