"""Workflow commands of GitHub: each puts a message beside a line of a pull request."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from batchproof.plugin.artifacts.problems import problems_of, unexplained
from batchproof.records.journal import JournalEntry

MOST = 10  # errors of one step that GitHub shows


def error_commands(failed: Iterable[JournalEntry]) -> Iterator[str]:
    """Yields a line for each problem where GitHub runs the tests, and none elsewhere."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    failed = list(failed)
    commands = [
        _command(str(each.promise), each.headline, *((each.at.file, each.at.line) if each.at else ()))
        for each in problems_of(failed)
    ]
    commands += [_command(each.test, each.report.partition("\n")[0]) for each in unexplained(failed)]
    yield from commands[:MOST]


def _command(title: str, message: str, file: str | None = None, line: int | None = None) -> str:
    """Returns an error command, with escapes for what separates its parts."""
    given = {"file": file, "line": line, "title": f"Batchproof: {title}"}
    parts = [f"{key}={_escaped(str(value), ':,')}" for key, value in given.items() if value]
    return f"::error {','.join(parts)}::{_escaped(message)}"


def _escaped(text: str, separators: str = "") -> str:
    for character in f"%\r\n{separators}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text
