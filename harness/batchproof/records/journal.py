"""The journal of a session: one line per finished test, after a line that names the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from batchproof.errors import UsageError
from batchproof.records.decode import DecodeError, decode, encode
from batchproof.records.trial_record import TrialRecord

SCHEMA = "batchproof.journal/1"


@dataclass(frozen=True)
class JournalEntry:
    """A finished test. Without a record the process ended before there was one."""

    test: str  # its node id
    outcome: str  # passed, failed or skipped, as pytest says
    seconds: float = 0.0
    record: TrialRecord | None = None
    report: str = ""  # of a failure or a skip, for people


def entries(path: Path) -> Iterator[JournalEntry]:
    """Yields all whole lines; the last may have been cut short. Yields nothing if there is no file.

    Raises `UsageError` for a file that is no journal, or of another version.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
            if number > 1:
                yield decode(JournalEntry, value)
        except (json.JSONDecodeError, DecodeError) as error:
            raise UsageError(f"journal '{path}' is damaged in line {number}: {error}") from None
        if number == 1 and value.get("schema") != SCHEMA:
            schema = value.get("schema")
            raise UsageError(f"'{path}' is no journal: its schema is {schema!r}, not {SCHEMA!r}")


def append(file: TextIO, entry: JournalEntry) -> None:
    """Writes the entry at once; in an empty file the schema comes first."""
    if file.tell() == 0:
        file.write(json.dumps({"schema": SCHEMA}) + "\n")
    file.write(json.dumps(encode(entry), allow_nan=False) + "\n")
    file.flush()


def cut_to_whole_lines(path: Path) -> None:
    """Removes a last line that was cut short, so that the next one stands alone."""
    if path.exists():
        whole, newline, _ = path.read_bytes().rpartition(b"\n")
        path.write_bytes(whole + newline)
