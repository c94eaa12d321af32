"""What this process last asked of an engine, noted where another process can read it.

If the process hangs or dies, the note is all that is left: it becomes the report of the test.
"""

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from batchproof.findings.finding import Subject
from batchproof.records.trial_record import TrialRecord
from batchproof.workload.workloads import Workload


@dataclass(frozen=True)
class CallNote:
    """A call of an engine, and the test that makes it."""

    call: str = ""
    is_open: bool = False  # it has not returned
    limit_s: float = 0.0
    engine: str = ""
    model: str = ""
    first_contact: bool = False  # with this engine on this model, outside any workload
    subject: Subject | None = None
    workload: Workload | None = None  # the last that the engine was given
    record: TrialRecord | None = None  # of the test, as far as it is known
    report: str = ""  # of a failure whose cause is being sought
    again: str = ""  # the command that runs the test again
    known: str | None = None  # why the test is a known failure


class CallNotes:
    """The note of a process. With a `path` it is written there at each change, for the process that
    takes its place. With a `dump`, which receives the stacks of a crash, it is expendable. `uncapture`
    lets be seen what a process prints that must end itself."""

    def __init__(self, path: Path | None = None) -> None:
        self.note = CallNote()
        self.dump: BinaryIO | None = None
        self.uncapture: Callable[[], None] = lambda: None
        self._fd = -1
        if path is not None:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT)
            self.dump = path.with_suffix(".dump").open("wb", buffering=0)
            self.change()

    def change(self, **changes: Any) -> None:
        self.note = replace(self.note, **changes)
        if self._fd >= 0:
            os.pwrite(self._fd, pickle.dumps(self.note), 0)  # a shorter one leaves an unread tail

    @contextmanager
    def calling(self, call: str, limit_s: float) -> Iterator[None]:
        """Notes that the process is in a call as long as the block lasts."""
        self.change(call=call, is_open=True, limit_s=limit_s)
        try:
            yield
        finally:
            self.change(is_open=False)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        if self.dump is not None:
            self.dump.close()


_KEPT = [CallNotes()]  # a process has one note, as it has one alarm; a nested session has its own


def notes() -> CallNotes:
    """Returns the notes of the innermost session of this process."""
    return _KEPT[-1]


@contextmanager
def keeping(own: CallNotes) -> Iterator[None]:
    """Makes these the notes of the process as long as the block lasts."""
    _KEPT.append(own)
    try:
        yield
    finally:
        _KEPT.remove(own)
        own.close()


def read_note(path: Path) -> CallNote | None:
    """Returns the note in a file; None if it has none, or is just being written."""
    try:
        return pickle.loads(path.read_bytes())
    except Exception:  # whatever a half-written pickle raises
        return None
