"""`--repro DIR`: writes a file for each failure of an engine, from which it can be replayed.

A YAML case stands beside it and, if answers show the failure, a stand-alone script.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import pytest

from batchproof.findings.failure import Failure
from batchproof.replay.write import FailureOrigin, write
from batchproof.run.engine_names import COMMAND_PREFIX
from batchproof.run.trial import Trial


@dataclass(frozen=True)
class Replay:
    """The failure file, if it could be written, and the line of the report about it."""

    path: str | None
    words: str


def replay_file(item: pytest.Item, trial: Trial, failure: Failure) -> Replay | None:
    """Writes the file; returns None if the run does not ask for it. An error in writing must not hide
    the failure itself, so it becomes the line of the report.
    """
    directory = item.config.getoption("--repro")
    if not directory:
        return None
    try:
        path = write(trial, failure, FailureOrigin(item.nodeid, _name(item)), Path(directory).resolve())
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


def _name(item: pytest.Item) -> str:
    """Returns the name of the case if the test runs one, else that of the test."""
    case = getattr(item, "callspec").params.get("case")  # noqa: B009 - only functions have it
    return case.name if case is not None else getattr(item, "originalname").removeprefix("test_")  # noqa: B009
