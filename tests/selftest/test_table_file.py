"""`--table=FILE`: the table engine x promise as JSON says what the terminal says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchproof.records.journal import entries
from batchproof.records.verdict import VERDICT
from tests.selftest.conftest import HEAD, LACKING, RIGHT, RunSuite

SUITE = f"""{HEAD}{RIGHT}{LACKING}
@pytest.mark.promise(id="P1")
@pytest.mark.promise(id="P4")
def test_two_promises(trial):
    trial.check(WORKLOAD)


@pytest.mark.promise(id="P4")
def test_wrong(trial):
    raise broken(Rule.STATED, promise=Promise.P2, what="planted")


def test_of_no_engine():
    pass
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "test_mini.py").write_text(SUITE)
    return tmp_path


def counts_of(cell: dict[str, Any]) -> dict[str, int]:
    return {kind: value for kind, value in cell.items() if kind != "text" and value}


def test_the_file_says_what_the_terminal_says(run_suite: RunSuite, suite: Path) -> None:
    session = run_suite("--table=table.json", "--engine=static", "--engine=ragged")
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED, session.output
    table = json.loads((suite / "table.json").read_text())
    assert table["schema"] == "batchproof.conformance/1"
    assert sorted(table["engines"]) == ["ragged", "static"]
    static = table["cells"]["static"]
    assert counts_of(static["P1"]) == {"passed": 2}
    assert counts_of(static["P2"]) == {"failed": 1}
    assert counts_of(static["P14"]) == {"no_cap": 1}
    assert {promise: cell["text"] for promise, cell in static.items()} == {
        "P1": "2",
        "P2": "FAIL 1",
        "P4": "1",
        "P14": "no cap",
    }
    assert counts_of(table["cells"]["ragged"]["P14"]) == {"passed": 1}
    assert table["totals"]["static"]["num_requests"] == 2
    assert "static: 2 workloads, 2 answers" in session.output
    assert (table["exit_status"], table["is_complete"]) == (1, True)
    assert (table["models"], table["device"], table["dtype"]) == (["gpt2-random"], "cpu", "float32")
    assert table["made"]["command"].startswith("pytest ")
    assert "--table=table.json" in table["made"]["command"]


def test_a_finding_that_holds_infinity_reaches_every_file(run_suite: RunSuite, suite: Path) -> None:
    """Such a finding once ended a run with a journal in an internal error."""
    raises = 'raise broken(Rule.STATED, promise=Promise.P2, what=float("-inf"))'
    (suite / "test_mini.py").write_text(
        SUITE.replace('raise broken(Rule.STATED, promise=Promise.P2, what="planted")', raises)
    )
    files = ["--journal=j.jsonl", "--verdict=v.json", "--artifacts=out"]
    session = run_suite("--engine=static", *files, "-k", "wrong or right")
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED, session.output
    assert [each.outcome for each in entries(suite / "j.jsonl")] == ["passed", "failed"]
    assert VERDICT.read(suite / "v.json").broken == ("P2",)


def test_a_session_without_conformance_tests_leaves_an_older_table(
    run_suite: RunSuite, suite: Path
) -> None:
    (suite / "table.json").write_text("old")
    session = run_suite("--table=table.json", "-k", "of_no")
    assert (suite / "table.json").read_text() == "old"
    assert "table.json: not written" in session.output
