"""The report of a test whose worker is gone: what its last note, its stacks and its exit status say."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import pytest

from batchproof.findings.failure import Failure, Run, Scene
from batchproof.findings.failure_text import failure_text
from batchproof.findings.finding import Rule, found
from batchproof.places import PACKAGE
from batchproof.plugin.entering import FIRST_CONTACT, enter
from batchproof.plugin.promise_table import RECORD, describe_for_junit
from batchproof.run.call_notes import CallNote
from batchproof.run.source_places import Frame, innermost

FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
MOST_FRAMES = 5


@dataclass(frozen=True)
class Ending:
    """How a worker ended. `frames` are the engine's, innermost last."""

    rule: Rule
    what: str
    frames: tuple[str, ...]
    at: Frame | None = None  # the innermost of the repository under test


def ending(path: Path, note: CallNote, node: Any) -> Ending:
    """Returns how the worker ended whose stacks are in the file."""
    dump = path.read_text(errors="replace")
    inner = _frames(dump)
    frames = tuple(f"{file}:{line} in {name}" for file, line, name in inner[-MOST_FRAMES:])
    at = innermost(inner)
    if dump.startswith("Timeout ("):
        what = (
            f"{note.call} did not return within {note.limit_s:g} s, nor when it was interrupted; its "
            f"process was ended"
        )
        return Ending(Rule.HANG, what, frames, at)
    when = f"in {note.call}" if note.is_open else f"after {note.call}"
    return Ending(Rule.DIED, f"the process {_status(node)} {when}", frames, at)


def _status(node: Any) -> str:
    status = None
    with suppress(AttributeError, TimeoutExpired):  # a worker on another machine has no process here
        status = node.gateway._io.popen.wait(timeout=5)
    if status is None:
        return "ended"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _frames(dump: str) -> list[Frame]:
    """Returns the frames inside the harness's own, innermost last, of the thread that failed or, if all
    hang, of the main one, which faulthandler lists last."""
    failed = dump.rpartition("Current thread")[2]
    stacks = re.split(r"^Thread .*$", failed, flags=re.MULTILINE)
    found = FRAME.findall(stacks[0 if "Current thread" in dump else -1])
    inner = takewhile(lambda frame: not frame[0].startswith(str(PACKAGE)), found)
    return [(file, int(line), name) for file, line, name in inner][::-1]


def complete(report: pytest.TestReport, note: CallNote, how: Ending) -> None:
    """Makes the report of a lost test that of a broken promise, and counts it for the table.

    A failure whose cause was being sought keeps its own report.
    """
    if note.subject is None:
        return  # it was no conformance test
    record = dict(note.record)
    if note.report:
        text = f"{note.report}\nits cause was being sought when this happened: {how.what}"
    else:
        finding = found(how.rule, what=how.what, evidence=how.frames, at=how.at)
        workload = note.workload or FIRST_CONTACT
        failure = Failure(finding, Scene((Run(0, workload),)), note.subject)
        enter(record, finding, requests=workload.requests)
        text = failure_text(failure)
    report.longrepr = f"{text}\n{note.again}"
    vars(report)[RECORD] = record
    describe_for_junit(report)
    if note.known is not None:
        report.outcome, report.wasxfail = "skipped", note.known
