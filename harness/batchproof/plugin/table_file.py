"""`--table=FILE`: the table engine x promise as JSON, for `batchproof site` and other readers.

It is written by the controller if there are workers, when the session ends; and every `KEPT_S` before,
marked as incomplete, because a session that is killed ends without a word. A session without a
conformance test leaves an older file as it is.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path
from time import monotonic

import pytest

from batchproof.plugin.promise_table import in_order, notes, outcomes_of
from batchproof.plugin.selection import SELECTION
from batchproof.records.made import made_now, pytest_line
from batchproof.records.table import CONFORMANCE, ConformanceTable
from batchproof.requirements.promises import Promise
from batchproof.requirements.tally import Outcome, cells_of, totals_of

OPTION = "--table"
HELP = "write the table engine x promise to FILE as JSON when the session ends"
KEPT_S = 20.0  # between two writings


class TableFile:
    """The plugin that is registered if `--table` is given."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self.path = path
        self._config = config
        self._outcomes: list[Outcome] = []
        self._kept_at = monotonic()
        self.written: ConformanceTable | None = None  # once the session has ended

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects the reports, those of workers included, and writes the table so far from time to
        time."""
        self._outcomes += outcomes_of([report])
        if self._outcomes and monotonic() - self._kept_at > KEPT_S:
            self._kept_at = monotonic()
            self._write(int(pytest.ExitCode.INTERRUPTED), is_complete=False)

    def _write(self, status: int, is_complete: bool) -> ConformanceTable:
        table = conformance(self._outcomes, self._config, status, is_complete)
        CONFORMANCE.write(table, self.path)
        return table

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: the exit status is settled
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Writes the file once the exit status is settled."""
        yield
        if not self._outcomes:
            return
        self.written = self._write(int(session.exitstatus), ran_to_its_end(session))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the path of the file, or that it was not written."""
        words = (
            f"table: {self.path}"
            if self._outcomes
            else f"{self.path}: not written, for there is no table"
        )
        terminalreporter.write_line(words)


def conformance(
    outcomes: list[Outcome], config: pytest.Config, exit_status: int, is_complete: bool
) -> ConformanceTable:
    """Returns the content of the file. `is_complete` states that no chosen test is missing."""
    selection = config.stash[SELECTION]
    names = [spec.name for spec in selection.engines]
    outcomes = in_order(outcomes, names, selection.model_names)
    engines = tuple(dict.fromkeys(record.engine for _, record in outcomes))
    return ConformanceTable(
        made=made_now(pytest_line(config.invocation_params.args)),
        engines=engines,
        cells={engine: cells_of(engine, outcomes) for engine in engines},
        totals={engine: totals_of(engine, outcomes) for engine in engines},
        models=tuple(dict.fromkeys(record.model for _, record in outcomes)),
        device=selection.device,
        dtype=selection.dtype,
        precision=str(selection.precision) or "as the model",
        torch=version("torch"),
        promises={promise.id: promise.title for promise in Promise},
        notes=tuple(notes(outcomes)),
        exit_status=exit_status,
        is_complete=is_complete,
    )


def ran_to_its_end(session: pytest.Session) -> bool:
    """Returns whether no chosen test is missing, by the session's exit status so far."""
    was_stopped = session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    return not (was_stopped or session.shouldstop or session.shouldfail)


def register(config: pytest.Config) -> None:
    """Registers the table file. Raises `pytest.UsageError` if no file can be written there."""
    path = writable_json(config, OPTION)
    if path is not None:
        config.pluginmanager.register(TableFile(path, config), "batchproof-table")


def writable_json(config: pytest.Config, option: str) -> Path | None:
    """Returns the path that an option names for the process that writes it, else None. Raises
    `pytest.UsageError` if no file can be written there."""
    asked = config.getoption(option)
    if asked is None or hasattr(config, "workerinput"):
        return None
    path = Path(asked)
    problem = _problem(path, bool(config.getoption("--benchmark-only", default=False)))
    if problem is not None:
        raise pytest.UsageError(f"{option} {asked!r} {problem}")
    return path.resolve()


def _problem(path: Path, is_benchmark: bool) -> str | None:
    if path.is_dir() or path.suffix != ".json":
        return "must name a file that ends in .json"
    if not path.parent.is_dir():
        return f"names the folder {str(path.parent)!r}, which is not there"
    if not os.access(path.parent, os.W_OK):
        return f"names the folder {str(path.parent)!r}, where nothing can be written"
    return "has nothing to write with --benchmark-only" if is_benchmark else None
