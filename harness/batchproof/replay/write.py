"""Writes what `--repro` leaves behind for one failure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from batchproof.findings.finding import Failure
from batchproof.replay.case import case_text, right_answers
from batchproof.replay.record import FailureFile
from batchproof.run.trial import Trial

LONGEST_NAME = 110


@dataclass(frozen=True)
class FailureOrigin:
    """The test that found a failure: its node id, and its short name or that of the case it ran."""

    test: str
    name: str


def write(
    trial: Trial, failure: Failure, origin: FailureOrigin, directory: Path, is_shown_again: bool | None
) -> Path:
    """Returns the path of the failure file, which has the case in a file of the same name. Overwrites
    nothing. `is_shown_again` is what `judge.is_shown_again` says of the failure."""
    directory.mkdir(parents=True, exist_ok=True)
    path = _new_file(directory, _stem(failure, origin.name))
    case = case_text(trial, failure, path.stem, origin.test)
    if case is not None:
        path.with_suffix(".yaml").write_text(case, encoding="utf-8")
    precision = trial.oracle.precision
    content = FailureFile.of(
        failure,
        right_answers(trial, failure.scene.workload),
        test=origin.test,
        time_limit_s=trial.lab.time_limit_s,
        compute_dtype=precision.compute,
        kv_cache_dtype="int8" if precision.is_cache_int8 else "auto",
        is_shown_again=is_shown_again,
    )
    path.write_text(content.text(), encoding="utf-8")
    return path


def _stem(failure: Failure, name: str) -> str:
    engine = failure.subject.engine.replace(".py:", ":").rpartition("/")[2]
    parts = (failure.promise.id, name, engine, Path(failure.subject.model).name)
    kebab = (re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts)
    return "-".join(filter(None, kebab))[:LONGEST_NAME].strip("-")


def _new_file(directory: Path, stem: str) -> Path:
    """Creates the file, so that two processes get different ones."""
    for number in count(1):
        path = directory / (f"{stem}.json" if number == 1 else f"{stem}-{number}.json")
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        return path
    raise AssertionError("numbers do not end")
