"""Requirement sets that never change, runs that are scored by one, and the verdict as a file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from batchproof.errors import UsageError
from batchproof.judgement import requirements_command
from batchproof.plugin import scoring
from batchproof.plugin.scoring import forgive
from batchproof.records.journal import JournalEntry
from batchproof.records.provenance import Machine, Provenance
from batchproof.records.trial_record import FailureRecord, TrialRecord
from batchproof.records.verdict import VERDICT, EngineVerdict
from batchproof.requirements import sets
from batchproof.requirements.promises import Promise
from batchproof.requirements.sets import Requirements, RequirementSet, set_of
from batchproof.requirements.verdict_of_journal import Asked, verdict_of
from batchproof.run.devices import torch_restored
from batchproof.run.laboratory import Laboratory
from batchproof_lab.suite_run import Effort, Recorder, SuiteOutcome
from tests.selftest.conftest import HEAD, LACKING, RunSuite

SUITE = f"""{HEAD}{LACKING}
@pytest.mark.promise(id="P1")
@pytest.mark.one_model
@pytest.mark.parametrize("kind", ["one kind", "another"])
def test_right(trial, kind):
    trial.check(WORKLOAD)


@pytest.mark.promise(id="P4")
def test_other(trial):
    trial.check(WORKLOAD)


@pytest.mark.promise(id="P2")
def test_new(trial):
    trial.check(WORKLOAD)
    raise broken(Rule.STATED, promise=Promise.P2, what="planted")
"""
HELD = ["test_mini::test_right[any-one kind]", "test_mini::test_right[any-another]"]
OTHER_HELD, NEW = "test_mini::test_other[gpt2-random]", "test_mini::test_new[gpt2-random]"
LACKING = "test_mini::test_lacking[gpt2-random]"


def requirement(requirement_id: str, promise: str) -> Requirements:
    test, _, rest = requirement_id.removesuffix("]").partition("[")
    model = next(each for each in ("any", "gpt2-random") if rest.startswith(each))
    parameters = (rest.removeprefix(model).removeprefix("-"),)
    return Requirements(test, promise, "T", (), (model,), parameters)


MINI = set_of(
    "2000.01",
    "2000-01-31",
    [
        *(requirement(each, "P1") for each in HELD),
        requirement(OTHER_HELD, "P4"),
        requirement(LACKING, "P14"),
    ],
)


@pytest.fixture
def mini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A suite with a set of its own, which lacks one test."""
    (tmp_path / "test_mini.py").write_text(SUITE)
    monkeypatch.setattr(scoring, "SUITE", tmp_path)
    monkeypatch.setattr(sets, "FOLDER", tmp_path)
    assert sets.freeze(MINI).name == "2000.01.json"
    return tmp_path


@pytest.fixture
def verdict(mini: Path, run_suite: RunSuite) -> EngineVerdict:
    session = run_suite("--requirements=2000.01", "--verdict=verdict.json")
    assert session.exit_status == pytest.ExitCode.OK, session.output
    assert "static: held; of 4 requirements 3 held, 1 no capability; of 1 unscored" in session.output
    assert "unscored, not in 2000.01: P2 caps is broken: planted" in session.output
    assert session.cell("P1 parity") == "2"
    assert "P2 caps" not in session.output.partition("engine x promise")[2].partition("2000.01")[0]
    return VERDICT.read(mini / "verdict.json")


def test_a_verdict_is_by_the_set(verdict: EngineVerdict, mini: Path, run_suite: RunSuite) -> None:
    assert (verdict.verdict, verdict.held, verdict.broken) == ("held", ("P1", "P4"), ())
    assert verdict.requirement_set == MINI.stamp
    assert verdict.outcomes == {**dict.fromkeys([*HELD, OTHER_HELD], "held"), LACKING: "no capability"}
    assert verdict.unscored == {NEW: "failed"}
    (failure,) = verdict.failures
    assert failure.failure is not None
    assert (failure.requirement, failure.failure.facts["what"]) == (NEW, "planted")
    assert failure.command.endswith(f"--model=gpt2-random '--requirement={NEW}'")

    ids = [f"--requirement={each}" for each in (OTHER_HELD, HELD[0])]
    session = run_suite("--requirements=2000.01", "--verdict=part.json", "--artifacts=out", *ids)
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED, "a part is not the whole"
    part = VERDICT.read(mini / "part.json")
    assert (part.verdict, part.held, part.is_complete) == ("incomplete", ("P4",), False)
    assert (part.outcomes[HELD[1]], part.promises["P1"].verdict) == ("not run", "incomplete")
    said = "incomplete; of 4 requirements 2 held, 2 not run"
    page = (mini / "out" / "summary.md").read_text()
    assert said in session.output
    assert "keeps 1 promise, in 2 of 5 tests\n" in page
    assert f"2000.01 (digest {MINI.digest[:12]}): **{said}**" in page
    assert "**The run failed: requirements were not run.**" in page


def test_a_selection_is_never_held(mini: Path, run_suite: RunSuite) -> None:
    """Without a set as well, but then it fails nothing."""
    session = run_suite("--verdict=verdict.json", "--deselect=test_mini.py::test_new")
    assert session.exit_status == pytest.ExitCode.OK, session.output
    part = VERDICT.read(mini / "verdict.json")
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
        ("failed", {"is_own_failure": True, "promises": ()}, "error", "undecided"),
        ("skipped", {"lacks": "stepping"}, "no capability", "no cap"),
        ("skipped", {"refused": "too deep"}, "refused", "refused"),
        ("passed", {"is_adequate": False}, "inadequate", "inadequate"),
        ("skipped", {}, "not run", "incomplete"),
    ],
)
def test_each_outcome_decides_its_promise(
    outcome: str, changes: dict[str, Any], expected: str, verdict: str
) -> None:
    record = TrialRecord("e", "m", ("P1",), requirement=HELD[0])
    entry = JournalEntry("test", outcome, record=replace(record, **changes))
    asked = Asked("pytest", set_of("2000.01", "", [requirement(HELD[0], "P1")]))
    reached = verdict_of("e", [entry], True, Provenance(Machine("one", 1), {}), asked)
    assert (reached.outcomes, reached.promises["P1"].verdict) == ({HELD[0]: expected}, verdict)
    assert (reached.verdict == "held") is (verdict == "held"), "a whole of nothing is not held"
    unmet = verdict_of("e", [], True, Provenance(Machine("one", 1), {}), asked)
    assert (unmet.outcomes, unmet.verdict) == ({HELD[0]: "not run"}, "incomplete")


@pytest.mark.parametrize(("other", "verdict"), [("held", "held"), ("ended", "undecided")])
def test_what_another_model_decides_is_decided(other: str, verdict: str) -> None:
    ended = TrialRecord("e", "m", ("P1",), requirement="test::a[m-x]", failure=OTHER)
    second = replace(ended, model="n", requirement="test::a[n-x]")
    second = replace(second, failure=None) if other == "held" else second
    entries = [
        JournalEntry(each.model, "failed" if each.failure else "passed", record=each)
        for each in (ended, second)
    ]
    reached = verdict_of("e", entries, True, Provenance(Machine("one", 1), {}), Asked("pytest"))
    assert reached.promises["P1"].verdict == verdict


@pytest.mark.parametrize(("is_scored", "outcome"), [(True, "failed"), (False, "skipped")])
def test_an_unscored_test_whose_process_ended_fails_nothing(is_scored: bool, outcome: str) -> None:
    record = TrialRecord("e", "m", ("P1",), is_scored=is_scored)
    report = pytest.TestReport("t", ("t", None, "t"), {}, "failed", "it died\nat once", "call")
    forgive(report, record, MINI)
    assert report.outcome == outcome
    assert TrialRecord("e", "m", ("P1",)).is_scored, "without a set all are"


def test_a_released_set_never_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sets.names() == sorted(sets.RELEASED)
    for name in sets.names():
        assert all(each.promise in Promise.__members__ for each in sets.load(name).requirements)
        with pytest.raises(UsageError, match="is released and never changes"):
            sets.freeze(sets.load(name))
        monkeypatch.setitem(sets.RELEASED, name, "another digest")
        with pytest.raises(UsageError, match="was changed after its release"):
            sets.load(name)


def terms(requirements: RequirementSet) -> dict[str, tuple[object, ...]]:
    return {name: (e.promise, e.grade, e.needs) for name, e in requirements.by_id.items()}


def test_every_requirement_of_every_set_is_still_asked(laboratory: Laboratory) -> None:
    """Under its id, for the same promise, by the same grade. A change needs a new set."""
    profile = settings.get_current_profile_name()
    with torch_restored():
        with_models = Recorder(SuiteOutcome(), Effort(), laboratory)
        current = terms(set_of("current", "", requirements_command.collected(with_models)))
    settings.load_profile(profile)
    for name in sets.names():
        then = terms(sets.load(name))
        assert {each: current.get(each) for each in then} == then
