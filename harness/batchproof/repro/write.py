"""Writes what `--repro` promises for one failure."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

from batchproof.repro.case import write_case
from batchproof.repro.failed import Failed
from batchproof.repro.script import script_text

LONGEST_NAME = 110


def write(failed: Failed, directory: Path) -> Path:
    """The script's path; the case stands beside it. Nothing that is there is written over."""
    directory.mkdir(parents=True, exist_ok=True)
    text = script_text(failed, directory)
    path = _new_file(directory, _stem(failed))
    path.write_text(text, encoding="utf-8")
    write_case(failed, path.with_suffix(".yaml"))
    return path


def _stem(failed: Failed) -> str:
    """Kebab-case, as names of cases are."""
    engine = failed.trial.spec.name.replace(".py:", ":").rpartition("/")[2]
    model = Path(failed.trial.subject.name).name
    parts = (failed.promise.id, failed.name, engine, model)
    kebab = (re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts)
    return "-".join(filter(None, kebab))[:LONGEST_NAME].strip("-")


def _new_file(directory: Path, stem: str) -> Path:
    """Made here, so that of two processes each gets one of its own."""
    for number in count(1):
        path = directory / (f"{stem}.py" if number == 1 else f"{stem}-{number}.py")
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        return path
    raise AssertionError("numbers do not end")
