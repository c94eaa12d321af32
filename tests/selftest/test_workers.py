"""A session with workers: what they find reaches the journal, the table and the list of known failures,
and a worker that dies costs its own test alone.

One session shows all of it, for each start of a worker takes longer than the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchproof.records.journal import entries

RunSuite = Callable[..., Any]

CRASHING = """
import os
from batchproof_engines.static import static

def crashing(model, config):
    engine = static(model, config)
    generate = engine.generate
    def or_crash(requests):
        if any(request.request_id == "crash" for request in requests):
            os._exit(7)
        return generate(requests)
    engine.generate = or_crash
    return engine
"""
SUITE = """
import pytest
from batchproof.api import Request
from batchproof.checks.broken import broken
from batchproof.findings.finding import Rule
from batchproof.workload.workloads import Workload

@pytest.mark.promise(id="P1")
@pytest.mark.parametrize("name", ["a", "crash", "b", "c"])
def test_it(trial, name):
    trial.check(Workload((Request(name, (1, 2), 2),)))

@pytest.mark.promise(id="P4")
def test_wrong(trial):
    raise broken(Rule.STATED, what="planted")

@pytest.mark.promise(id="P14")
@pytest.mark.needs("stepping")
def test_lacking(trial):
    raise AssertionError
"""
ENGINE = "mine.py:crashing"


def test_what_workers_find_is_what_is_kept_and_shown(run_suite: RunSuite, tmp_path: Path) -> None:
    (tmp_path / "test_mini.py").write_text(SUITE)
    (tmp_path / "mine.py").write_text(CRASHING)
    (tmp_path / "known.txt").write_text(
        f"test_mini.py::test_wrong[{ENGINE}-gpt2-random] # slow fix # http://x/#1\n"
    )
    journal = tmp_path / "journal.jsonl"
    files = [f"--journal={journal}", "--xfails=known.txt", "--table=table.json"]
    session = run_suite(f"--engine={ENGINE}", *files, "-n1")
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED, session.output
    kept = {each.test.rpartition("-")[2]: each.outcome for each in entries(journal)}
    assert {name: kept[f"{name}]"] for name in ("a", "crash", "b", "c")} == {
        "a": "passed",
        "crash": "failed",
        "b": "passed",
        "c": "passed",
    }
    assert len(list(entries(journal))) == 6, "each test once, though a second worker took over"
    table = json.loads((tmp_path / "table.json").read_text())
    cells = {promise: cell["text"] for promise, cell in table["cells"][ENGINE].items()}
    assert cells == {"P1": "3 known 1", "P10": "FAIL 1", "P14": "no cap"}
    assert session.cell("P1 parity") == cells["P1"]
    assert (table["exit_status"], table["is_complete"]) == (1, True)
