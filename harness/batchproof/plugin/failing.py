"""What a failed test produces: its text, its entry in the test's record, and its failure file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from batchproof.api import EngineConfig, Request
from batchproof.checks.broken import BrokenPromise
from batchproof.errors import EngineHang
from batchproof.findings.causes import Diagnosis
from batchproof.findings.failure import Failure
from batchproof.findings.failure_text import failure_text
from batchproof.findings.finding import Finding, Rule, found, thawed
from batchproof.findings.finding_text import first_line
from batchproof.plugin.diagnosing import diagnosis_of
from batchproof.plugin.item_names import again
from batchproof.plugin.repro import replay_file
from batchproof.plugin.xfails import known_failure_of
from batchproof.records.decode import encode
from batchproof.records.trial_record import FailureRecord
from batchproof.run.call_notes import notes
from batchproof.run.capabilities import PROBE
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

TRIAL = pytest.StashKey[Trial]()  # there even if the `trial` fixture fails
FIRST_CONTACT = Workload((PROBE,), EngineConfig(return_logits=True))


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
    diagnosis = diagnosis_of(item.config, trial, failure)
    replay = replay_file(item, trial, failure)
    path = None if replay is None else replay.path
    enter(record, failure.finding, case, diagnosis, path, requests)
    text = failure_text(failure, diagnosis)
    return text if replay is None else f"{text}\n{replay.words}"


def enter(
    record: dict[str, Any],
    finding: Finding,
    case: str | None = None,
    diagnosis: Diagnosis | None = None,
    replay: str | None = None,
    requests: Sequence[Request] = (),
) -> None:
    """Enters the failure into the record of the test, as JSON values."""
    facts = {name: thawed(value) for name, value in finding.facts.items()}
    record["failure"] = encode(
        FailureRecord(
            promise=finding.promise.id,
            rule=finding.rule.id,
            headline=first_line(finding),
            case=case,
            request_id=finding.request_id,
            step=finding.step,
            facts=facts | (workload_facts(requests) if requests else {}),
            cause=None if diagnosis is None else diagnosis.cause.name,
            replay=replay,
        )
    )


def described(item: pytest.Item, record: dict[str, Any]) -> None:
    """Notes which test it is: its function, and its parameters except engine, model and case."""
    given: Mapping[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    record["function"] = getattr(item, "originalname", item.name)
    record["parameters"] = {
        name: value for name, value in given.items() if isinstance(value, str | int | float)
    }


def workload_facts(requests: Sequence[Request]) -> dict[str, object]:
    """Returns what a known issue may require of the workload that shows a failure."""
    return {"shortest_prompt": min(len(each.prompt_token_ids) for each in requests)}
