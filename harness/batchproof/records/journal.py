"""Journals: one line per finished piece of work, after a first line that names the kind and what was
asked.

A line is on the disk before the next one is begun. A process that is killed leaves at most a torn last
line, which readers leave out and the next writer cuts.
"""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from batchproof.errors import UsageError
from batchproof.records.decode import DecodeError, decode, encode
from batchproof.records.file_kinds import FileKind
from batchproof.records.trial_record import TrialRecord

Head = TypeVar("Head")
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class JournalKind(Generic[Head, Entry]):
    """One kind of journal. `head` is the kind of its first line."""

    head: FileKind[Head]
    entry: type[Entry]

    def read(self, path: Path) -> tuple[Head | None, list[Entry]]:
        """Returns the head and all whole lines after it; no head if the file is missing or empty.
        Raises `UsageError` for a file of another kind or version, and for one that is damaged."""
        head: Head | None = None
        found = []
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                value = json.loads(line)
                if number > 1:
                    found.append(decode(self.entry, value))
                else:
                    head = self.head.of(path, value)
            except (ValueError, DecodeError) as error:
                raise UsageError(f"journal '{path}' is damaged in line {number}: {error}") from None
        return head, found

    def append_to(self, path: Path, head: Head) -> "JournalWriter":
        """Opens the file for one writer: cuts a torn last line, and begins an empty file with the
        head. Raises `UsageError` if another process writes it, or if it has another head."""
        if self.read(path)[0] not in (None, head):
            raise UsageError(f"journal '{path}' was begun for something else: name another file")
        try:
            file = path.open("ab")
        except OSError as error:
            raise UsageError(f"journal '{path}' cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise UsageError(f"journal '{path}' is being written by another process") from None
        file.truncate(path.read_bytes().rfind(b"\n") + 1)
        writer = JournalWriter(file)
        if file.tell() == 0:
            writer.write({"schema": self.head.schema} | encode(head))
        return writer


class JournalWriter:
    def __init__(self, file: BinaryIO) -> None:
        file.seek(0, os.SEEK_END)
        self._file = file

    def append(self, entry: object) -> None:
        """Writes an entry at once; what is null or an empty text, as by default, is left out."""
        self.write({key: value for key, value in encode(entry).items() if value not in (None, "")})

    def write(self, line: object) -> None:
        """Writes a line, and returns when it is on the disk."""
        self._file.write(json.dumps(encode(line), allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file, which another process may then write."""
        self._file.close()


@dataclass(frozen=True)
class NoHead:
    """Stands in a journal whose lines need no context."""


@dataclass(frozen=True)
class JournalEntry:
    """A finished test. Without a record the process ended before there was one."""

    test: str  # its node id
    outcome: str  # passed, failed or skipped, as pytest says, or known: failed, as expected
    seconds: float = 0.0
    record: TrialRecord | None = None
    report: str = ""  # of a failure or a skip, for people
    reason: str = ""  # why it was expected to fail, with its link


TESTS = JournalKind(FileKind("journal", "batchproof.journal", 1, NoHead), JournalEntry)


def entries(path: Path) -> list[JournalEntry]:
    """Returns the finished tests of a session, as `TESTS.read` does."""
    return TESTS.read(path)[1]
