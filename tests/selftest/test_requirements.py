"""The verdict as a file: what each outcome decides, and what a selection of tests leaves open."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchproof.records.journal import JournalEntry
from batchproof.records.provenance import Machine, Provenance
from batchproof.records.trial_record import FailureRecord, TrialRecord
from batchproof.records.verdict import VERDICT, Conditions
from batchproof.requirements.verdict_of_journal import verdict_of
from tests.selftest.conftest import HEAD, LACKING, RunSuite

SUITE = f"""{HEAD}{LACKING}
@pytest.mark.promise(id="P1")
@pytest.mark.one_model
@pytest.mark.parametrize("kind", ["one kind", "another"])
def test_right(trial, kind):
    trial.check(WORKLOAD)


@pytest.mark.promise(id="P2")
def test_wrong(trial):
    trial.check(WORKLOAD)
    raise broken(Rule.STATED, promise=Promise.P2, what="planted")
"""
HELD = ["test_mini::test_right[any-one kind]", "test_mini::test_right[any-another]"]
WRONG = "test_mini::test_wrong[gpt2-random]"
MADE = Provenance(Machine("one", 1), {})


def test_a_verdict_is_by_requirement_and_a_selection_is_never_held(
    tmp_path: Path, run_suite: RunSuite
) -> None:
    session = run_suite("--verdict=verdict.json", test_mini=SUITE)
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED, session.output
    verdict = VERDICT.read(tmp_path / "verdict.json")
    lacking = "test_mini::test_lacking[gpt2-random]"
    assert verdict.outcomes == {
        **dict.fromkeys(HELD, "held"),
        WRONG: "failed",
        lacking: "no capability",
    }
    assert (verdict.verdict, verdict.held, verdict.broken) == ("broken", ("P1",), ("P2",))
    (failure,) = verdict.failures
    assert failure.failure is not None
    assert (failure.requirement, failure.failure.facts["what"]) == (WRONG, "planted")
    assert failure.command.endswith(f"--model=gpt2-random '--requirement={WRONG}'")

    session = run_suite("--verdict=part.json", "--artifacts=out", f"--requirement={HELD[0]}")
    assert session.exit_status == pytest.ExitCode.OK, session.output
    part = VERDICT.read(tmp_path / "part.json")
    assert (part.verdict, part.held, part.is_complete) == ("incomplete", ("P1",), False)
    assert part.outcomes == {HELD[0]: "held"}
    assert "keeps 1 promise, in 1 of 4 tests\n" in (tmp_path / "out" / "summary.md").read_text()
    run_suite("--verdict=part.json", "--deselect=test_mini.py::test_wrong")
    part = VERDICT.read(tmp_path / "part.json")
    assert (part.verdict, part.is_complete, part.broken) == ("incomplete", False, ())


OTHER = FailureRecord("P9", "token", "P9 is broken")


@pytest.mark.parametrize(
    ("outcome", "changes", "expected", "verdict"),
    [
        ("passed", {}, "held", "held"),
        ("failed", {"failure": replace(OTHER, promise="P1")}, "failed", "broken"),
        ("failed", {"failure": OTHER}, "failed", "undecided"),
        ("known", {"failure": replace(OTHER, promise="P1")}, "known", "known failures"),
        ("failed", {"is_stale": True}, "held", "held"),
        ("skipped", {"lacks": "stepping"}, "no capability", "no cap"),
        ("skipped", {"refused": "too deep"}, "refused", "refused"),
        ("passed", {"is_adequate": False}, "inadequate", "inadequate"),
    ],
)
def test_each_outcome_decides_its_promise(
    outcome: str, changes: dict[str, Any], expected: str, verdict: str
) -> None:
    record = TrialRecord("e", "m", ("P1",), requirement=HELD[0])
    entry = JournalEntry("test", outcome, record=replace(record, **changes))
    reached = verdict_of("e", [entry], True, MADE, "pytest", Conditions())
    assert (reached.outcomes, reached.promises["P1"].verdict) == ({HELD[0]: expected}, verdict)
    assert (reached.verdict == "held") is (verdict == "held"), "a whole of nothing is not held"


def test_what_the_harness_fails_at_is_never_held() -> None:
    record = TrialRecord("e", "m", (), requirement=HELD[0], is_own_failure=True)
    entry = JournalEntry("test", "failed", record=record)
    reached = verdict_of("e", [entry], True, MADE, "pytest", Conditions())
    assert (reached.outcomes, reached.verdict) == ({HELD[0]: "error"}, "incomplete")
    unmet = verdict_of("e", [JournalEntry("test", "skipped")], True, MADE, "pytest", Conditions())
    assert (unmet.outcomes, unmet.verdict) == ({}, "untested")


@pytest.mark.parametrize(("other", "verdict"), [("held", "held"), ("ended", "undecided")])
def test_what_another_model_decides_is_decided(other: str, verdict: str) -> None:
    ended = TrialRecord("e", "m", ("P1",), requirement="test::a[m-x]", failure=OTHER)
    second = replace(ended, model="n", requirement="test::a[n-x]")
    second = replace(second, failure=None) if other == "held" else second
    entries = [
        JournalEntry(each.model, "failed" if each.failure else "passed", record=each)
        for each in (ended, second)
    ]
    reached = verdict_of("e", entries, True, MADE, "pytest", Conditions())
    assert reached.promises["P1"].verdict == verdict
