"""The option `--artifacts` and the plugin that collects the reports and writes the files."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from batchproof.errors import UsageError
from batchproof.plugin.artifacts.annotations import error_commands
from batchproof.plugin.artifacts.code_quality import code_quality
from batchproof.plugin.artifacts.problems import FinishedRun, problems_of
from batchproof.plugin.artifacts.sarif import sarif
from batchproof.plugin.artifacts.summary_page import summary_page
from batchproof.plugin.left_out import LEFT_OUT
from batchproof.plugin.promise_table import counted, record_of
from batchproof.plugin.table_file import TableFile
from batchproof.plugin.verdict_file import VerdictFile
from batchproof.records.file_kinds import replace_text
from batchproof.records.journal import JournalEntry
from batchproof.records.table import ConformanceTable

OPTION = "--artifacts"
HELP = (
    "write all that CI keeps or shows of the run to DIR: summary.md, results.sarif, code-quality.json, "
    "junit.xml, table.json, failures/ and, with one engine, verdict.json"
)


def prepare(config: pytest.Config) -> None:
    """Makes the folder, and asks for the files that other options write unless they name their own.

    Raises `UsageError` if there can be no such folder.
    """
    asked = config.getoption(OPTION)
    if asked is None:
        return
    if config.getoption("--benchmark-only", default=False):
        raise UsageError(f"{OPTION} {asked!r} is of conformance tests: leave out --benchmark-only")
    if not asked:
        raise UsageError(f"{OPTION} '' must name a folder")
    folder = Path(asked).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{OPTION} {asked!r} can be no folder: {error.strerror}") from error
    option = config.option
    option.table = option.table or str(folder / "table.json")
    option.repro = option.repro or str(folder / "failures")
    if len(config.getoption("--engine") or ()) == 1:
        option.verdict = option.verdict or str(folder / "verdict.json")
    option.xmlpath = getattr(option, "xmlpath", None) or str(folder / "junit.xml")


def register(config: pytest.Config) -> None:
    """Registers the plugin, after that of the table so that the table is whole before."""
    if not hasattr(config, "workerinput"):
        asked = config.getoption(OPTION)
        artifacts = Artifacts(config, None if asked is None else Path(asked).resolve())
        config.pluginmanager.register(artifacts, "batchproof-artifacts")


class Artifacts:
    """The plugin. Without a folder it prints annotations, and only where GitHub runs the tests."""

    def __init__(self, config: pytest.Config, folder: Path | None) -> None:
        self._config, self._folder = config, folder
        self._failed: list[JournalEntry] = []
        self._known: list[JournalEntry] = []
        self._names: set[str] = set()  # of conformance tests

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects what failed, from workers as well."""
        record, reason = record_of(report), getattr(report, "wasxfail", None)
        if record is not None:
            self._names.add(report.nodeid)
        if record is not None and record.is_scored and reason is not None:
            self._known.append(JournalEntry(report.nodeid, "known", record=record, report=reason))
        if report.failed:
            text = str(report.longrepr)
            entry = JournalEntry(report.nodeid, "failed", report.duration, record, text)
            self._failed.append(entry)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints annotations, and where the files lie."""
        for line in error_commands(self._failed):
            terminalreporter.write_line(line)
        if self._folder is not None:
            terminalreporter.write_line(f"artifacts: {self._folder}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None]:
        """Writes the files once the table is whole; none in a session without a conformance test."""
        yield
        table = self._config.pluginmanager.get_plugin("batchproof-table")
        if self._folder is None or not isinstance(table, TableFile) or table.written is None:
            return
        run = self._finished(table.written, self._folder)
        for name, text in (
            ("summary.md", summary_page(run)),
            ("results.sarif", json.dumps(sarif(run), indent=1)),
            ("code-quality.json", json.dumps(code_quality(problems_of(run.failed)), indent=1)),
        ):
            replace_text(self._folder / name, text)

    def _finished(self, table: ConformanceTable, folder: Path) -> FinishedRun:
        left_out = self._config.stash[LEFT_OUT]
        reached = self._config.pluginmanager.get_plugin("batchproof-verdict")
        verdicts = reached.verdicts if isinstance(reached, VerdictFile) else ()
        selection, num_more = "", left_out.num_without(self._names)
        if left_out.is_uncounted:
            selection = f"{counted(len(self._names), 'test')}, a selection"
        elif num_more:
            selection = f"{len(self._names)} of {counted(len(self._names) + num_more, 'test')}"
        return FinishedRun(
            table,
            tuple(self._failed),
            folder,
            known=tuple(self._known),
            verdicts={each.engine: each for each in verdicts},
            ways=left_out.ways(),
            selection=selection,
        )
