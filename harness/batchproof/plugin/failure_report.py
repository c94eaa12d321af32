"""The report of a failure: its text, and its entry in the record of the test.

Diagnosis and failure file are optional rooms: they are imported by name when the first test fails, run
after the verdict, and never change it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from batchproof.errors import EngineHang
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.failure import Failure
from batchproof.findings.finding_text import failure_text
from batchproof.records.trial_record import FailureRecord
from batchproof.run.engine_names import COMMAND_PREFIX
from batchproof.run.time_limit import contained

if TYPE_CHECKING:
    from batchproof.run.trial import Trial
from collections.abc import Sequence

from batchproof.api import EngineConfig, Request
from batchproof.findings.finding import Finding, thawed
from batchproof.findings.finding_text import first_line
from batchproof.records.trial_record import FindingRecord
from batchproof.run.capabilities import PROBE
from batchproof.workload.workloads import Workload

FIRST_CONTACT = Workload((PROBE,), EngineConfig(return_logits=True))


def record_failure(
    failure: Failure, diagnosis: Diagnosis | None = None, replay: str | None = None
) -> FailureRecord:
    """Returns the record of a failure. `replay` is the path of its failure file, if there is one."""
    decisive = _record_finding(failure.finding, failure.scene.workload.requests)
    others: Sequence[Finding] = getattr(failure, "others", ())
    return FailureRecord(
        **vars(decisive),
        case=failure.case.name if failure.case else None,
        cause=None if diagnosis is None else diagnosis.cause.name,
        replay=replay,
        others=tuple(_record_finding(each) for each in others),
    )


def _record_finding(finding: Finding, requests: Sequence[Request] = ()) -> FindingRecord:
    facts = {name: thawed(value) for name, value in finding.facts.items()}
    if requests:  # what a known issue may require of the workload that shows a failure
        facts["shortest_prompt"] = min(len(each.prompt_token_ids) for each in requests)
    return FindingRecord(
        promise=finding.promise.id,
        rule=finding.rule.id,
        headline=first_line(finding),
        request_id=finding.request_id,
        step=finding.step,
        facts=facts,
    )


@dataclass(frozen=True)
class Replay:
    """The failure file, if it could be written, and the line of the report about it."""

    path: str | None
    words: str


@dataclass(frozen=True)
class FailureReport:
    """The text of a failed test, and the failure as data."""

    text: str
    record: FailureRecord


@dataclass(frozen=True)
class FailureAids:
    """What is done for a failed test besides its report. Each may take the process along."""

    note: Callable[[FailureReport], None]  # before the others, for the process that comes after
    diagnose: Callable[[Failure], Diagnosis | None]
    write_replay: Callable[[Failure], Replay | None]


def report_failure(failure: Failure, aids: FailureAids) -> FailureReport:
    """Returns the report of a failure, with its most likely cause and its failure file."""
    aids.note(_report(failure, None, None))
    return _report(failure, aids.diagnose(failure), aids.write_replay(failure))


def _report(failure: Failure, diagnosis: Diagnosis | None, replay: Replay | None) -> FailureReport:
    text = failure_text(failure, diagnosis)
    if replay is None:
        return FailureReport(text, record_failure(failure, diagnosis))
    return FailureReport(f"{text}\n{replay.words}", record_failure(failure, diagnosis, replay.path))


def diagnosis_of(failure: Failure, trial: Trial, limit_s: float) -> Diagnosis | None:
    """Returns the most likely cause, or None if the run does not ask for it or the engine hung at first
    contact."""
    if not limit_s or trial.spec.name in trial.lab.lost:
        return None
    try:
        with contained():
            found: Diagnosis = import_module("batchproof.diagnosis").diagnose(trial, failure, limit_s)
            return found
    except (Exception, EngineHang) as slip:  # whatever it is, the verdict stands
        return Diagnosis(Cause.UNKNOWN, f"the diagnosis itself failed: {type(slip).__name__}: {slip}")


def replay_of(failure: Failure, trial: Trial, folder: str, test: str, name: str) -> Replay | None:
    """Writes the failure file into the folder, if there is one. An error in writing becomes the line of
    the report: it must not hide the failure itself."""
    if not folder:
        return None
    room = import_module("batchproof.replay.write")
    try:
        path = room.write(trial, failure, room.FailureOrigin(test, name), Path(folder).resolve())
    except Exception as trouble:
        where = traceback.extract_tb(trouble.__traceback__)[-1]
        what = f"{type(trouble).__name__}: {trouble} ({where.filename}:{where.lineno})"
        return Replay(None, f"replay: none, because writing it raised {what}")
    words = f"replay: python -m batchproof replay {quote(str(path))}"
    file, suffix, rest = trial.spec.name.partition(".py:")
    if suffix and not trial.spec.name.startswith(COMMAND_PREFIX):  # relative to this folder
        words += f" --engine={quote(f'{Path(file).resolve()}{suffix}{rest}')}"
    if not trial.subject.is_embedded and (model := Path(trial.subject.name)).exists():
        words += f" --model={quote(str(model.resolve()))}"
    return Replay(str(path), words)
