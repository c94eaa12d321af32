"""`python -m batchproof judge`: what is noted, what it adds up to, and how it is told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchproof.__main__ import main
from batchproof.errors import UsageError
from batchproof.judgement import command
from batchproof.judgement.findings import DEFAULT_FINDINGS, read_findings
from batchproof.judgement.page import verdict_page
from batchproof.judgement.session import Session
from batchproof.judgement.verdict import repeated, verdict_of
from batchproof.plugin.journal import entries
from batchproof.run.registry import resolve_engine

RunSuite = Callable[..., Any]

SUITE = """
import pytest
from batchproof.api import Request
from batchproof.promises import Promise
from batchproof.checks.verdict import ConformanceFailure
from batchproof.workload.workloads import Workload

WORKLOAD = Workload((Request("a", (1, 2), 2),))


@pytest.mark.promise(id="P1")
def test_right(trial):
    trial.check(WORKLOAD)


@pytest.mark.promise(id="P5")
@pytest.mark.parametrize("number", [1, 2])
def test_wrong(trial, number):
    trial.check(WORKLOAD)
    with trial.reporting(WORKLOAD):
        raise ConformanceFailure(Promise.P5, f"planted {number}")


@pytest.mark.promise(id="P9")
@pytest.mark.needs("scheduling")
def test_schedule(trial):
    raise AssertionError
"""
CRASH = {
    "test": "tests/conformance/test_reuse.py::test_a_used_engine[mine-gpt2-hash]",
    "outcome": "failed",
    "told": "worker 'gw0' crashed while running it",
}
RECORD = {
    "engine": "static",
    "model": "gpt2-hash",
    "promises": ["P1"],
    "ledger": {"num_requests": 1, "num_steps": 1, "num_workloads": 1},
}
MADE = {"command": "python", "date": "today", "machine": {"cpu": "one", "cores": 1}}
MADE |= {"versions": {"python": "3"}, "commit": "abc"}


@pytest.fixture
def journal(run_suite: RunSuite, tmp_path: Path) -> Path:
    (tmp_path / "test_mini.py").write_text(SUITE)
    path = tmp_path / "journal.jsonl"
    session = run_suite(f"--journal={path}", f"--repro={tmp_path / 'repro'}", "--diagnose-for=0")
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED, session.output
    return path


def test_every_test_is_noted_once_and_is_not_run_again(journal: Path, run_suite: RunSuite) -> None:
    noted = list(entries(journal))
    assert [each["outcome"] for each in noted] == ["passed", "failed", "failed", "skipped"]
    again = run_suite(f"--journal={journal}")
    assert "4 deselected" in again.output
    assert list(entries(journal)) == noted


def test_a_line_that_was_cut_short_is_run_again(journal: Path, run_suite: RunSuite) -> None:
    whole = journal.read_text()
    journal.write_text(whole[:-9])
    assert len(list(entries(journal))) == 3
    run_suite(f"--journal={journal}")
    assert [each["test"] for each in entries(journal)][-1].startswith("test_mini.py::test_schedule")


def test_a_verdict_tells_what_is_held_broken_and_untested(journal: Path) -> None:
    verdict = verdict_of("static", [*entries(journal), CRASH], is_complete=True)
    assert (verdict.held, verdict.broken) == (["P1"], ["P5"])
    assert "P9" in verdict.untested
    planted, crash = verdict.faults
    assert (planted.promises, planted.functions) == (("P5",), ("test_wrong",))
    assert planted.num_tests == 2
    assert planted.script is not None
    assert (crash.promises, crash.functions) == (("?",), ("test_a_used_engine",))
    page = verdict_page(verdict, MADE, "pytest", journal.parent)
    assert "breaks P5 (isolation)" in page
    assert "holds 1 of the 2 promises it was tested on" in page
    assert "### 1. P5 isolation is broken: planted 1" in page
    assert "worker 'gw0' crashed" in page
    assert "| 1 | engine 'static' has no capability 'scheduling' |" in page


FINDINGS = """
- engine: mine
  title: The one that is meant
  kind: documented
  tests: [test_wrong, test_right]
  words: ["planted 1", "gw9"]
  cause: Its manual says so.
  threads: [https://example.org/1]
- engine: mine
  title: The one that is not
  kind: defect
  words: ["planted", "crashed"]
  cause: A block is freed twice.
- engine: other
  title: Of somebody else
  kind: defect
  words: ["planted"]
  cause: none
- engine: mine
  title: In another test
  kind: defect
  tests: [test_schedule]
  words: ["planted"]
  cause: none
"""


def test_what_is_known_of_a_failure_is_told_and_a_convention_breaks_nothing(
    journal: Path, tmp_path: Path
) -> None:
    path = tmp_path / "findings.yaml"
    path.write_text(FINDINGS)
    noted = [json.loads(line) for line in journal.read_text().splitlines()]
    for each in noted:
        each["record"]["ledger"] = each["record"].get("ledger", {}) | {"release": "mine 1.0"}
    verdict = verdict_of("static", [*noted, CRASH], True, read_findings(path))
    defect, meant = verdict.faults
    assert (defect.title, defect.promises, defect.num_tests) == ("The one that is not", ("P5", "?"), 2)
    assert (meant.title, meant.is_documented) == ("The one that is meant", True)
    assert (verdict.broken, verdict.differing) == (["P5"], [])
    page = verdict_page(verdict, MADE, "pytest", tmp_path)
    assert "A defect. A block is freed twice." in page
    assert "No public thread is known to us." in page
    assert "A documented convention. Its manual says so." in page
    assert "In public: https://example.org/1." in page
    assert [each.title for each in verdict.unshown] == ["In another test"]
    only_meant = verdict_of("static", [noted[0], noted[1]], True, read_findings(path))
    assert (only_meant.broken, only_meant.differing) == ([], ["P5"])
    titles = [each.title for each in only_meant.unshown]
    assert titles == ["The one that is not", "In another test"]
    page = verdict_page(only_meant, MADE, "x", tmp_path)
    assert "differs by documented conventions in P5" in page
    assert "* The one that is not. A block is freed twice." in page


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1", "must hold a list"),
        ("[1]", "entry 1 is 1, but must be a mapping"),
        ("- {engine: x}", "entry 1 has no 'title'"),
        ("- {engin: x}", "has the key 'engin', but may have engine, title"),
        ("- {engine: 1}", "engine is 1, but must be a str"),
        (
            "- {engine: x, title: t, kind: bug, words: [], cause: c}",
            "kind is 'bug', but must be one of",
        ),
        ("- {engine: x, title: t, kind: defect, words: ['('], cause: c}", "no regular expression"),
        (
            "- {engine: x, title: t, kind: defect, words: [a], cause: c, script: no.py}",
            "there is no script",
        ),
        ("- {engine: x, title: t, kind: defect, words: [1], cause: c}", "1 is no text"),
        ("- {engine: x, title: t, kind: defect, words: ['.'], cause: c}", "'.' fits everything"),
        ("- {engine: '', title: t, kind: defect, words: [a], cause: c}", "engine is empty"),
        ("[", "is no YAML"),
    ],
)
def test_a_wrong_finding_is_named(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "findings.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=re.escape(words)):
        read_findings(path)


def test_a_file_of_findings_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file of findings"):
        read_findings(tmp_path / "none.yaml")


def test_the_findings_that_are_kept_here_can_be_read() -> None:
    assert all(each.cause.endswith(".") for each in read_findings(DEFAULT_FINDINGS))


def test_a_stopped_judgement_says_so() -> None:
    page = verdict_page(verdict_of("static", [CRASH], is_complete=False), MADE, "pytest", Path())
    assert "**INCOMPLETE**" in page
    assert "**Nothing was compared**" in page


def test_a_reproduction_is_run_twice(journal: Path) -> None:
    fault = verdict_of("static", entries(journal), is_complete=True).faults[0]
    assert fault.script is not None
    fault.script.write_text("raise SystemExit(1)")
    assert repeated(fault) == ("reproduced", "reproduced")


def test_a_judgement_is_written_and_goes_on_where_it_stopped(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "engines"
    found: list[int] = []

    def run(self: Session, _progress: object) -> int:
        found.append(len(list(entries(self.journal))))
        self.journal.write_text(journal.read_text())
        return int(pytest.ExitCode.TESTS_FAILED)

    monkeypatch.setattr(Session, "count", lambda _self: 4)
    monkeypatch.setattr(Session, "run", run)
    monkeypatch.setattr(command, "repeated", lambda _fault: ("reproduced", "reproduced"))
    arguments = ["judge", "static", f"--output={output}", "--jobs=1"]
    assert main(arguments) == 1
    assert main([*arguments, "--resume"]) == 1
    assert main(arguments) == 1
    assert found == [0, 4, 0]
    facts = json.loads((output / "static.json").read_text())
    assert (facts["held"], facts["broken"], facts["is_complete"]) == (["P1"], ["P5"], True)
    assert "run alone: reproduced and reproduced" in (output / "static.md").read_text()


def test_what_is_refused_loses_nobody_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "engines"
    kept = output / "static" / "kept.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    assert main(["judge", "..", f"--output={output}"]) == 2
    assert "is no engine" in capsys.readouterr().err
    for engine in (".", "-", "nosuch"):  # by the same words, without a process
        with pytest.raises(UsageError, match="is no engine"):
            resolve_engine(engine)
    monkeypatch.setattr(Session, "count", lambda _self: 1)
    assert main(["judge", "static", f"--output={output}"]) == 2
    assert "is no folder of a judgement, and is not deleted" in capsys.readouterr().err
    assert main(["judge", "ragged", f"--output={output}", "--resume"]) == 2
    assert "there is no judgement of 'ragged' to resume" in capsys.readouterr().err
    assert [path.name for path in output.iterdir()] == ["static"]
    assert kept.read_text() == "mine"


def test_only_what_was_begun_is_resumed(tmp_path: Path) -> None:
    Session("static", ["-k", "smoke"], 1, tmp_path / "static").begin_anew()
    Session("static", ["-k", "smoke"], 2, tmp_path / "static").require_same_as_before()
    with pytest.raises(UsageError, match=r"was begun with .* -k smoke; it cannot be resumed with"):
        Session("static", [], 1, tmp_path / "static").require_same_as_before()


def test_two_engines_of_one_release_have_a_page_each(tmp_path: Path) -> None:
    first, second = (verdict_of(f"cmd:mine {i}", [], is_complete=True) for i in (1, 2))
    pages = []
    for verdict in (replace(first, release="mine 1"), replace(second, release="mine 1")):
        pages.append(command._page_of(verdict, tmp_path))
        pages[-1].with_suffix(".json").write_text(json.dumps({"engine": verdict.engine}))
    assert [page.name for page in pages] == ["mine-1.md", "mine-1-cmd-mine-2.md"]


def test_a_failure_without_a_promise_is_no_success(tmp_path: Path) -> None:
    verdict = verdict_of("static", [CRASH], is_complete=True)
    assert verdict.defects
    assert "1 more failures name no promise" in verdict_page(
        replace(verdict, records=[("passed", RECORD)]), MADE, "pytest", tmp_path
    )


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
CRASHED_TWICE = """
import pytest
from batchproof.api import Request
from batchproof.workload.workloads import Workload

@pytest.mark.promise(id="P1")
@pytest.mark.parametrize("name", ["a", "crash", "b", "c", "d", "crash", "e", "f"])
def test_it(trial, name):
    trial.check(Workload((Request(name, (1, 2), 2),)))
"""


def test_a_process_that_ends_costs_its_own_test_alone(run_suite: RunSuite, tmp_path: Path) -> None:
    (tmp_path / "test_mini.py").write_text(CRASHED_TWICE)
    (tmp_path / "mine.py").write_text(CRASHING)
    journal = tmp_path / "journal.jsonl"
    run_suite("--engine=mine.py:crashing", f"--journal={journal}", "-n1")
    outcomes = {each["test"].rpartition("-")[2]: each["outcome"] for each in entries(journal)}
    assert list(outcomes.values()).count("failed") == 2
    assert list(outcomes.values()).count("passed") == 6
    assert all((outcome == "failed") == name.startswith("crash") for name, outcome in outcomes.items())


def test_wrong_input_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "static", "static"]) == 2
    assert "error: 'static' is named twice" in capsys.readouterr().err
