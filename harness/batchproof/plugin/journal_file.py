"""`--journal FILE`: writes each finished test to the file at once, as a line, and does not run it
again.

A judgement that was stopped, by hand or by the machine, therefore resumes with the same command. With
workers the controller writes; all processes read what the file held when they began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchproof.cli.choices import WHOLE, Shard, shard
from batchproof.errors import UsageError
from batchproof.plugin.left_out import keep
from batchproof.plugin.promise_table import record_of
from batchproof.records.journal import TESTS, JournalEntry, NoHead, entries

OPTION, SHARD = "--journal", "--shard"
KNOWN = "batchproof_journal"  # in a worker's input
HELP = "write each finished test to FILE, and leave out those that it holds already"


def add_options(group: pytest.OptionGroup) -> None:
    """Adds `--journal` and `--shard`."""
    group.addoption(OPTION, metavar="FILE", help=HELP)
    group.addoption(
        SHARD,
        type=shard,
        default=WHOLE,
        metavar="I/N",
        help="run share I of N of the tests selected; together the shares hold each once",
    )


class Sharding:
    """The plugin that is registered if `--shard` is given. It sees what -k and -m select, and before
    the journal takes out any of it.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselects the tests of other shares."""
        keep(config, items, {*self._shard.of(items)}.__contains__)


class Journal:
    """The plugin that is registered if `--journal` is given."""

    def __init__(self, path: Path, told: Mapping[str, Any] | None) -> None:
        """`told`: the input of a worker; None in the process that writes."""
        self._writer = TESTS.append_to(path, NoHead()) if told is None else None
        self._known = {each.test for each in entries(path)} if told is None else set(told[KNOWN])
        self._open: dict[str, JournalEntry] = {}  # tests under way

    @pytest.hookimpl(trylast=True)  # and after the shard's, which is registered before
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselects the tests that the journal holds already."""
        keep(config, items, lambda item: item.nodeid not in self._known)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects the reports of a test and writes its entry once the test is over."""
        if self._writer is None:
            return
        self._open[report.nodeid] = continued(self._open.get(report.nodeid), report)
        if report.when in ("teardown", "???"):  # ???: the process of a worker is gone
            self._writer.append(self._open.pop(report.nodeid))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Passes the known tests on: a worker that replaces a dead one must see the same tests."""
        node.workerinput[KNOWN] = sorted(self._known)

    def pytest_unconfigure(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()


def continued(before: JournalEntry | None, report: pytest.TestReport) -> JournalEntry:
    """Returns the entry of a test with one more of its reports."""
    before = before or JournalEntry(report.nodeid, "passed")
    entry = replace(
        before,
        seconds=round(before.seconds + report.duration, 3),
        record=record_of(report) or before.record,
    )
    if report.outcome == "passed":
        return entry
    is_unscored = entry.record is not None and not entry.record.is_scored
    is_forgiven = hasattr(report, "wasxfail")
    outcome = report.outcome if not is_forgiven else "failed" if is_unscored else "known"
    return replace(entry, outcome=outcome, report=_text(report))


def _text(report: pytest.TestReport) -> str:
    longrepr: object = report.longrepr
    if isinstance(longrepr, tuple):  # of a skip: file, line, reason
        return str(longrepr[2]).removeprefix("Skipped: ")
    return str(longrepr)


def register(config: pytest.Config) -> None:
    """Registers the shard and the journal. Raises `pytest.UsageError` if the file cannot be written
    or is no journal.
    """
    if (share := config.getoption(SHARD)).number > 1:
        config.pluginmanager.register(Sharding(share), "batchproof-shard")
    asked = config.getoption(OPTION)
    if asked is None:
        return
    path = Path(asked)
    if path.is_dir() or not path.parent.is_dir():
        raise pytest.UsageError(f"{OPTION} {asked!r} must name a file in a folder that is there")
    try:
        journal = Journal(path.resolve(), getattr(config, "workerinput", None))
    except UsageError as error:
        raise pytest.UsageError(f"{OPTION}: {error}") from None
    config.pluginmanager.register(journal, "batchproof-journal")
