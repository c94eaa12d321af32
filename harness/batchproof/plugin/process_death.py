"""The report of a test whose process died or hung: what its last note, its stacks and its exit status
say."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import pytest

from batchproof.findings.failure import Failure, Run, Scene
from batchproof.findings.finding import Rule, found
from batchproof.findings.finding_text import failure_text
from batchproof.places import PACKAGE
from batchproof.plugin.failure_record import FIRST_CONTACT, record_failure
from batchproof.plugin.items import attach_record
from batchproof.records.trial_record import Ledger, TrialRecord
from batchproof.run.call_notes import CallNote
from batchproof.run.failures import Frame, innermost

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


def complete_report(report: pytest.TestReport, note: CallNote, how: Ending) -> TrialRecord | None:
    """Makes the report of a lost test that of a broken promise and returns the record that it carries;
    None if it was no conformance test.

    A failure whose cause was being sought keeps its own report.
    """
    record, subject = note.record, note.subject
    if record is None or subject is None:
        return None
    if note.report:
        text = f"{note.report}\nits cause was being sought when this happened: {how.what}"
    else:
        finding = found(how.rule, what=how.what, evidence=how.frames, at=how.at)
        failure = Failure(finding, Scene((Run(0, note.workload or FIRST_CONTACT),)), subject)
        said = Ledger(release=subject.release, precision=subject.precision)
        record = replace(record, failure=record_failure(failure), ledger=said)
        text = failure_text(failure)
    report.longrepr = f"{text}\n{note.again}"
    attach_record(report, record)
    if note.known is not None:
        report.outcome, report.wasxfail = "skipped", note.known
    return record
