"""`--artifacts`: the files of a run say what happened, and where in the repository it shows."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from batchproof.plugin.writers.page import FinishedRun, summary_page
from batchproof.records.journal import JournalEntry
from batchproof.records.provenance import Machine, Provenance
from batchproof.records.table import ConformanceTable, PromiseCell, Totals
from batchproof.records.trial_record import FailureRecord, TrialRecord
from tests.selftest.conftest import HEAD, RunSuite

ENGINE = """
from batchproof_engines.static import StaticEngine
from scheduling import chosen

class Mine(StaticEngine):
    def generate(self, requests):
        return super().generate(chosen(requests))
"""
SCHEDULING = """
def chosen(requests):
    if len(requests) > 1:
        raise LookupError("a `slot`, 100% full: ```")
    return requests
"""
SUITE = f"""{HEAD}
from batchproof.checks.broken import BrokenPromise
from batchproof.findings.finding import found

def requests(number):
    return Workload(tuple(Request(f"r{{i}}", (1, 2), 2) for i in range(number)))

@pytest.mark.promise(id="P1")
@pytest.mark.parametrize("number", [1, 2, 3])
def test_raises(trial, number):
    trial.check(requests(number))

@pytest.mark.promise(id="P4")
def test_wrong(trial):
    both = [found(Rule.STATED, promise=each, what="planted") for each in (Promise.P4, Promise.P2)]
    raise BrokenPromise(*both)

def test_of_no_engine():
    raise AssertionError("not the engine's")
"""
ID = "test_mini.py::test_raises[mine.py:Mine-gpt2-random-1]"


def test_the_files_of_a_run(run_suite: RunSuite, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()  # a repository
    (tmp_path / "known").write_text(
        f"[[expected_failures]]\ntest = '{ID}'\nreason = 'gone'\nlink = '#1'\n"
    )
    modules = {"mine": ENGINE, "scheduling": SCHEDULING, "test_mini": SUITE}
    options = ("--engine=mine.py:Mine", "--artifacts=out", "--xfails=known", "--diagnose-for=20")
    run_suite(*options, **modules)
    out = tmp_path / "out"
    assert {each.name for each in out.iterdir()} == {
        *("summary.md", "junit.xml", "table.json", "failures", "verdict.json")
    }

    page = (out / "summary.md").read_text()
    assert page.startswith(
        "## Batchproof: `mine.py:Mine` breaks 2 promises (P1 parity, P4 order) and keeps 0 promises\n"
    )
    assert "| P1 parity | **FAIL 3** |\n| P4 order | **FAIL 1** |" in page
    # The frame that raised is inside the repository, not in the engine that it is derived from.
    (line,) = (each for each in page.splitlines() if each.startswith("* **P4 order**: "))
    assert "`planted`, and" in line
    assert "and 1 more finding" in line, "of a bare BrokenPromise too"
    assert "At `scheduling.py:4`, in `chosen`:\n\n````text\nP1 parity is broken: " in page
    assert "replay: python -m batchproof replay failures/p1-raises" in page
    assert str(tmp_path) not in page
    assert f"### Expected failures that pass now\n\n* `{ID}`: " in page
    assert "### Failed for other reasons than an engine\n\n* `test_mini.py::test_of_no_engine`" in page

    cases = ElementTree.parse(out / "junit.xml").iter("testcase")
    failed = next(each for each in cases if "Mine-gpt2-random-2]" in each.get("name", ""))
    assert failed[0].get("message", "").startswith("P1 parity is broken: the engine raised LookupError")


def failed(name: str, report: str = "P1 parity is broken: x", **changes: Any) -> JournalEntry:
    failure = FailureRecord("P1", "token", "P1 parity is broken: x", **changes)
    record = TrialRecord("mine", "gpt2-hash", ("P1",), name=name, failure=failure)
    return JournalEntry(name, "failed", record=record, report=report)


def finished(*entries: JournalEntry, passed: int = 1, status: int = 1) -> FinishedRun:
    table = ConformanceTable(
        Provenance(Machine("cpu", 1), {}),
        ("mine",),
        {"mine": {"P1": PromiseCell("1", passed=passed, failed=len(entries))}},
        {"mine": Totals()},
        exit_status=status,
    )
    return FinishedRun(table, entries, Path("/nowhere"))


def test_a_promise_with_an_expected_failure_is_not_kept() -> None:
    run = finished(status=0)
    cells = {"mine": {"P1": PromiseCell("1 known 1", 1, known=1), "P4": PromiseCell("1", 1)}}
    known = JournalEntry(
        "t[mine]", "known", record=failed("t").record, report="a report", reason="a bug (#7)"
    )
    page = summary_page(replace(run, table=replace(run.table, cells=cells), finished=(known,)))
    headline = "has expected failures in 1 promise (P1 parity) and keeps 1 promise\n"
    assert page.startswith(f"## Batchproof: `mine` {headline}")
    assert "### Expected failures\n\n* `t[mine]`: a bug (#7)\n" in page


def test_a_run_that_failed_for_no_engines_sake_does_not_look_green() -> None:
    assert summary_page(finished(status=0)).startswith("## Batchproof: `mine` keeps 1 promise\n")
    assert "**The run failed**" in summary_page(finished())
    cut = replace(finished().table, is_complete=False)
    assert "some tests are missing" in summary_page(replace(finished(), table=cut))
