"""`batchproof judge`: what is noted, what it adds up to, and how it is reported."""

import os
import re
import shutil
import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from batchproof.__main__ import main
from batchproof.errors import Interrupt, UsageError
from batchproof.judgement.output import folder_of, verdict_page, write_verdict
from batchproof.judgement.suite_session import Session
from batchproof.places import ROOT
from batchproof.records.journal import JournalEntry, entries
from batchproof.records.provenance import Machine, Provenance
from batchproof.records.texts import slug
from batchproof.records.verdict import VERDICT, Conditions, EngineVerdict
from batchproof.requirements.issues import KnownIssue, read_issues
from batchproof.requirements.verdict_of_journal import verdict_of, without_local_paths
from tests.selftest.conftest import HEAD, RIGHT, RunSuite, run_in

SUITE = f"""{HEAD}{RIGHT}
@pytest.mark.promise(id="P5")
@pytest.mark.parametrize("number", [1, 2])
def test_wrong(trial, number):
    trial.check(WORKLOAD)
    with trial.reporting(WORKLOAD):
        raise broken(Rule.STATED, promise=Promise.P5, what=f"planted {{number}}")


@pytest.mark.promise(id="P9")
@pytest.mark.needs("scheduling")
def test_schedule(trial):
    raise AssertionError
"""
CRASH = JournalEntry(
    "tests/conformance/test_reuse.py::test_a_used_engine[mine-gpt2-hash]",
    "failed",
    report="worker 'gw0' crashed while running it",
)
MADE = Provenance(Machine("one", 1), {"python": "3"}, "python", "today", "abc")


def judged(
    found: Iterable[JournalEntry],
    issues: Sequence[KnownIssue] = (),
    is_complete: bool = True,
    engine: str = "static",
) -> EngineVerdict:
    return verdict_of(engine, found, is_complete, MADE, "pytest", Conditions(), issues)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of a run of the suite, beside it."""
    folder = tmp_path_factory.mktemp("judged")
    (folder / "test_mini.py").write_text(SUITE)
    session = run_in(
        folder, "--journal=journal.jsonl", f"--repro={folder / 'repro'}", "--diagnose-for=0"
    )
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED, session.output
    return folder / "journal.jsonl"


def test_every_test_is_noted_once_as_data_and_is_not_run_again(
    journal: Path, tmp_path: Path, run_suite: RunSuite
) -> None:
    journal = shutil.copytree(journal.parent, tmp_path, dirs_exist_ok=True) / journal.name
    noted = list(entries(journal))
    assert [each.outcome for each in noted] == ["passed", "failed", "failed", "skipped"]
    failed = noted[1].record
    assert failed is not None
    assert failed.failure is not None
    assert (failed.function, dict(failed.parameters)) == ("test_wrong", {"number": 1})
    assert (failed.failure.promise, failed.failure.case) == ("P5", None)
    assert failed.failure.headline == "P5 isolation is broken: planted 1"
    assert failed.failure.facts["shortest_prompt"] == 2
    whole = journal.read_text()
    assert "4 deselected" in run_suite(f"--journal={journal}").output
    assert journal.read_text() == whole
    journal.write_text(whole[:-9])  # a line that was cut short is run again
    assert "3 deselected" in run_suite(f"--journal={journal}").output
    assert [each.test for each in entries(journal)] == [each.test for each in noted]


def test_another_file_is_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"schema": "batchproof.journal/1"}\n{"test": 3}\n')
    with pytest.raises(UsageError, match="damaged in line 2: test is 3: input should be"):
        entries(path)


def test_a_verdict_says_what_is_held_broken_and_untested(journal: Path) -> None:
    verdict = judged([*entries(journal), CRASH])
    assert (verdict.held, verdict.broken) == (("P1",), ("P5",))
    assert "P9" in verdict.untested
    planted, crash = verdict.groups
    assert (planted.promises, planted.tests) == (("P5",), ("test_wrong",))
    assert planted.num_tests == 2
    assert (crash.promises, crash.tests) == ((), (CRASH.test,))
    page = verdict_page(verdict)
    assert "breaks P5 (isolation)" in page
    assert "holds 1 of the 2 promises it was tested on" in page
    assert "### 1. P5 isolation is broken: planted 1" in page
    assert "worker 'gw0' crashed" in page
    assert "| 1 | engine 'static' has no capability 'scheduling' |" in page
    unnamed = judged([next(iter(entries(journal))), CRASH])
    assert unnamed.defects, "a failure that names no promise is no success"
    assert "1 more failure names no promise" in verdict_page(unnamed)
    page = verdict_page(judged([CRASH], is_complete=False))
    assert "**INCOMPLETE**" in page
    assert "**Nothing was compared**" in page


ISSUES = """
- engine: mine
  title: The one that is meant
  kind: documented
  matches:
    - {test: [test_wrong, test_right], promise: P5, parameters: {number: 1}}
  cause: Its manual says so.
  threads: [https://example.org/1]
- engine: mine
  title: In another test
  kind: defect
  matches: [{test: test_schedule, promise: P5}]
  cause: none
- engine: mine
  title: The one that is not
  kind: defect
  matches: [{promise: P5, facts: {shortest_prompt: 2}}]
  cause: A block is freed twice.
- engine: other
  title: Of another engine
  kind: defect
  matches: [{promise: P5}]
  cause: none
"""


def of_mine(entry: JournalEntry) -> JournalEntry:
    """The same test of the engine whose failures are known."""
    assert entry.record is not None
    return replace(
        entry, record=replace(entry.record, ledger=replace(entry.record.ledger, release="mine 1.0"))
    )


def test_what_is_known_of_a_failure_is_shown_and_a_convention_breaks_nothing(
    journal: Path, tmp_path: Path
) -> None:
    path = tmp_path / "findings.yaml"
    path.write_text(ISSUES)
    issues, noted = read_issues(path), [of_mine(each) for each in entries(journal)]
    verdict = judged([*noted, CRASH], issues)
    defect, crash, meant = verdict.groups
    assert not replace(issues[0], unless=("fast=true",)).is_of("mine 1.0", "mine?fast=true")
    assert (defect.title, defect.promises, defect.num_tests) == ("The one that is not", ("P5",), 1)
    assert crash.promises == ()
    assert (meant.title, meant.is_documented) == ("The one that is meant", True)
    assert (verdict.broken, verdict.differing) == (("P5",), ())
    page = verdict_page(verdict)
    assert "A defect. A block is freed twice." in page
    assert "No public thread is known to us." in page
    assert "A documented convention. Its manual says so." in page
    assert "In public: https://example.org/1." in page
    assert [each.title for each in verdict.unshown] == ["In another test"]
    only_meant = judged(noted[:2], issues)
    assert (only_meant.broken, only_meant.differing) == ((), ("P5",))
    titles = [each.title for each in only_meant.unshown]
    assert titles == ["In another test", "The one that is not"]
    page = verdict_page(only_meant)
    assert "differs by documented conventions in P5" in page
    assert "* The one that is not. A defect. A block is freed twice. No public" in page


def test_an_issue_that_would_excuse_every_failure_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "findings.yaml"
    path.write_text("- {engine: x, title: t, kind: defect, matches: [{}], cause: c}")
    with pytest.raises(UsageError, match="fits every failure"):
        read_issues(path)


def test_no_path_of_this_machine_is_written(tmp_path: Path) -> None:
    text = (
        f"{ROOT}/harness/a.py:3 in x, {tmp_path}/b/c.py, /opt/v/lib/site-packages/torch/nn.py:8, "
        f"{os.path.dirname(os.__file__)}/json/decoder.py, {Path.home()}/d.py"
    )
    verdict = without_local_paths(judged([replace(CRASH, report=text)]))
    shown = verdict.groups[0].shown_report
    assert "harness/a.py:3 in x, " in shown
    assert " torch/nn.py:8, json/decoder.py, d.py" in shown
    assert not re.search(r"(?:^|\s)/", shown)


@pytest.mark.parametrize(
    ("end", "is_whole", "exit_code"),
    [(None, True, 1), (None, False, 1), (Interrupt(signal.SIGINT), True, 130)],
    ids=["whole", "selection", "stopped"],
)
def test_a_judgement_is_written_and_one_that_is_stopped_keeps_what_is_done(
    end: Interrupt | None,
    is_whole: bool,
    exit_code: int,
    journal: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(self: Session) -> int:
        self.journal.write_text(journal.read_text())
        if end is not None:
            raise end
        VERDICT.write(judged([], is_complete=is_whole), self.verdict)
        return int(pytest.ExitCode.TESTS_FAILED)

    folder = tmp_path / "engines" / "static"
    monkeypatch.setattr(Session, "run", run)
    assert main(["judge", "static", f"--output={folder.parent}", "--jobs=1"]) == exit_code
    verdict = VERDICT.read(folder / "verdict.json")
    is_complete = end is None and is_whole
    assert (verdict.held, verdict.broken, verdict.is_complete) == (("P1",), ("P5",), is_complete)
    page = (folder / "verdict.md").read_text()
    shown = re.search(r"Run again alone: \[\S+\.json\]\((failures/\S+\.json)\), not reproduced\.", page)
    index = (folder.parent / "README.md").read_text()
    assert ("| [static](static/verdict.md)" in index) == is_complete
    assert ("not all tests were run: [static](static/verdict.md)" in index) != is_complete
    assert shown
    assert (folder / shown[1]).is_file()


def test_a_judgement_without_a_test_writes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["judge", "..", f"--output={tmp_path}", "--jobs=1"]) == 2
    error = capfd.readouterr().err
    assert "--engine '..' is no engine" in error
    assert "error: '..' is not judged, since no test was run: see above" in error
    assert not [*tmp_path.iterdir()]


def test_two_engines_of_one_release_have_a_folder_each(tmp_path: Path) -> None:
    verdicts = [replace(judged([], engine=f"cmd:mine {i}"), title="mine 1") for i in (1, 2, 1)]
    pages = [write_verdict(each, folder_of(each, tmp_path)) for each in verdicts]
    assert [page.parent.name for page in pages] == ["mine-1", "mine-1-cmd-mine-2", "mine-1"]
    assert slug("x" * 500) != slug("x" * 501)
    assert slug("..") != slug("/")
