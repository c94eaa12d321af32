"""`--table=FILE`: the table engine x promise as JSON, for `batchproof report` and other readers.

It is written when the session ends, by the controller where there are workers. A session without a
conformance test leaves an older file as it is.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from batchproof.plugin.selection import SELECTION
from batchproof.plugin.table import (
    Record,
    cell,
    counts,
    notes,
    records_of,
    totals,
)
from batchproof.promises import Promise
from batchproof.provenance import provenance
from batchproof.report.schema import CONFORMANCE

OPTION = "--table"
HELP = "write the table engine x promise to FILE as JSON when the session ends"
KINDS = ("passed", "failed", "near-ties", "known", "no cap", "refused", "inadequate", "skipped")
COMPARED = ("num_workloads", "num_requests", "num_steps", "num_logits", "num_near_ties")


class TableFile:
    """Registered where the option is given."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self.path = path
        self._config = config
        self._records: list[Record] = []
        self._told = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The workers' reports come here as well."""
        self._records += records_of([report])

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: the exit status is settled
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        yield
        if not self._records:
            return
        status = int(session.exitstatus)
        was_stopped = status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        is_complete = not (was_stopped or session.shouldstop or session.shouldfail)
        content = conformance(self._records, self._config, status, is_complete)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, self.path)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        words = (
            f"table: {self.path}"
            if self._records
            else f"{self.path}: not written, for there is no table"
        )
        terminalreporter.write_line(words)


def conformance(
    records: list[Record], config: pytest.Config, exit_status: int, is_complete: bool
) -> dict[str, Any]:
    """The content of the file. `is_complete`: no test that was chosen is missing."""
    selection = config.stash[SELECTION]
    engines = list(dict.fromkeys(record["engine"] for _, record in records))
    models = list(dict.fromkeys(record["model"] for _, record in records))
    return {
        "schema": CONFORMANCE,
        "made": provenance(shlex.join(["pytest", *map(str, config.invocation_params.args)])),
        "engines": engines,
        "models": models,
        "device": str(selection.device),
        "dtype": str(selection.dtype).removeprefix("torch."),
        "precision": str(selection.precision) or "as the model",
        "torch": torch.__version__,
        "promises": {promise.id: promise.title for promise in Promise},
        "cells": {engine: _cells(counts(engine, records)) for engine in engines},
        "totals": {engine: _compared(totals(engine, records)) for engine in engines},
        "notes": notes(records),
        "exit_status": exit_status,
        "is_complete": is_complete,
    }


def _cells(found: dict[str, Counter[str]]) -> dict[str, dict[str, Any]]:
    """In the order of the promises; those that no test of the session checked are left out."""
    return {
        promise.id: {"text": cell(found[promise.id])}
        | {kind.replace("-", "_").replace(" ", "_"): found[promise.id][kind] for kind in KINDS}
        for promise in Promise
        if promise.id in found
    }


def _compared(total: Counter[str]) -> dict[str, int]:
    return {name: total[name] for name in COMPARED}


def register(config: pytest.Config) -> None:
    """Raises `pytest.UsageError` for a place where no file can be written."""
    asked = config.getoption(OPTION)
    if asked is None or hasattr(config, "workerinput"):
        return
    path = Path(asked)
    problem = _problem(path, bool(config.getoption("--benchmark-only")))
    if problem is not None:
        raise pytest.UsageError(f"{OPTION} {asked!r} {problem}")
    config.pluginmanager.register(TableFile(path.resolve(), config), "batchproof-table")


def _problem(path: Path, is_benchmark: bool) -> str | None:
    if path.is_dir() or path.suffix != ".json":
        return "must name a file that ends in .json"
    if not path.parent.is_dir():
        return f"names the folder {str(path.parent)!r}, which is not there"
    if not os.access(path.parent, os.W_OK):
        return f"names the folder {str(path.parent)!r}, where nothing can be written"
    return "has no table to write with --benchmark-only" if is_benchmark else None
