"""`--journal FILE`: each test that is over is a line of the file at once, and is not run again.

So a judgement may be stopped at any time, by hand or by the machine, and go on with the same command.
With workers the controller writes; all processes read what was there when they began.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from batchproof.plugin.table import RECORD

OPTION = "--journal"
HELP = "note each test that is over in FILE, and leave out those that are noted there already"


class Journal:
    """Registered where the option is given."""

    def __init__(self, path: Path, is_writer: bool, known: list[str] | None = None) -> None:
        self._known = {entry["test"] for entry in entries(path)} if known is None else set(known)
        if is_writer:
            _cut_to_whole_lines(path)
        self._is_writer = is_writer
        self._path = path
        self._file: TextIO | None = None
        self._open: dict[str, dict[str, Any]] = {}  # tests under way

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self._known]
        if done:
            config.hook.pytest_deselected(items=done)
            items[:] = [item for item in items if item.nodeid not in self._known]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self._is_writer:
            return
        entry = self._open.setdefault(report.nodeid, {"test": report.nodeid, "outcome": "passed"})
        entry["seconds"] = round(entry.get("seconds", 0.0) + report.duration, 3)
        record = dict(report.user_properties).get(RECORD)
        if record is not None:
            entry["record"] = record
        if report.outcome != "passed":
            entry["outcome"] = report.outcome
            entry["told"] = _told(report)
        if report.when in ("teardown", "???"):  # ???: the process of a worker is gone
            self._write(self._open.pop(report.nodeid))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """A worker that takes a dead one's place must see the same tests."""
        node.workerinput["batchproof_journal"] = sorted(self._known)

    def pytest_sessionfinish(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        if self._file is None:
            self._file = self._path.open("a", encoding="utf-8")
        self._file.write(json.dumps(entry, default=str) + "\n")
        self._file.flush()


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """All whole lines; the last may have been cut short."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return
    for line in lines[:-1]:
        yield json.loads(line)


def _cut_to_whole_lines(path: Path) -> None:
    if path.exists():
        whole, newline, _ = path.read_bytes().rpartition(b"\n")
        path.write_bytes(whole + newline)


def _told(report: pytest.TestReport) -> str:
    longrepr: object = report.longrepr
    if isinstance(longrepr, tuple):  # of a skip: file, line, reason
        return str(longrepr[2]).removeprefix("Skipped: ")
    return str(longrepr)


def register(config: pytest.Config) -> None:
    """Raises `pytest.UsageError` for a place where no file can be written."""
    asked = config.getoption(OPTION)
    if asked is None:
        return
    path = Path(asked)
    if path.is_dir() or not path.parent.is_dir():
        raise pytest.UsageError(f"{OPTION} {asked!r} must name a file in a folder that is there")
    is_writer = not hasattr(config, "workerinput")
    known = None if is_writer else getattr(config, "workerinput")["batchproof_journal"]  # noqa: B009 - only workers have it
    config.pluginmanager.register(Journal(path.resolve(), is_writer, known), "batchproof-journal")
