"""The report of a failure, with its most likely cause and its failure file. Both come after the verdict
and never change it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from batchproof.diagnosis.diagnose import diagnose
from batchproof.errors import EngineHang
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.failure import Failure
from batchproof.findings.finding_text import failure_text
from batchproof.plugin.failure_record import record_failure
from batchproof.records.trial_record import FailureRecord
from batchproof.replay.judge import is_shown_again
from batchproof.replay.write import FailureOrigin, write
from batchproof.run.engine_names import COMMAND_PREFIX
from batchproof.run.time_limit import contained
from batchproof.run.trial import Trial


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


def report_failure(
    failure: Failure, diagnosis: Diagnosis | None = None, replay: Replay | None = None
) -> FailureReport:
    """Returns the report of a failure, with its most likely cause and its failure file if there are
    such."""
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
            return diagnose(trial, failure, limit_s)
    except (Exception, EngineHang) as slip:  # whatever it is, the verdict stands
        return Diagnosis(Cause.UNKNOWN, f"the diagnosis itself failed: {type(slip).__name__}: {slip}")


def replay_of(failure: Failure, trial: Trial, folder: str, test: str, name: str) -> Replay | None:
    """Writes the failure file into the folder, if there is one. An error in writing becomes the line of
    the report: it must not hide the failure itself."""
    if not folder:
        return None
    try:
        is_shown, origin = is_shown_again(trial, failure), FailureOrigin(test, name)
        path = write(trial, failure, origin, Path(folder).resolve(), is_shown)
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
