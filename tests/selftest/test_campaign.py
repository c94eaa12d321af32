"""The kill table and the campaign against false alarms: a small one of each, and what they report."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchproof.__main__ import main
from batchproof.errors import UsageError
from batchproof.models.embedded import EMBEDDED
from batchproof.places import ROOT
from batchproof.records.provenance import Machine, Provenance
from batchproof.run.registry import faults
from batchproof_lab.campaign import CampaignState
from batchproof_lab.conformance_modules import conformance_functions
from batchproof_lab.faults_command import kill_page, problems, updated_table, whole_table
from batchproof_lab.honest_command import (
    HONEST,
    MODELS,
    HonestCounts,
    HonestOutcome,
    HonestPlan,
    honest_page,
    record_of,
    sweeping_tests,
)
from batchproof_lab.kill_table import KILL_TABLE, Attempt, Hunt, Kill, KillTable, KillTableRecord
from batchproof_lab.worker_pool import LostTask
from tests.selftest.conftest import OneProcess

KNOWN = faults()
WHOLE = ROOT / "results" / "faults.json"
SMALL = ("mask_ignores_sequence", "ids_are_stripped")
MADE = Provenance(Machine("one", 1), {"python": "3"}, "python", "today", "abc")


@pytest.fixture
def table() -> KillTable:
    """Two faults, caught on both models and seeds."""
    made = KillTable({name: KNOWN[name] for name in SMALL}, ("gpt2-random", "llama-hash"), (1, 2))
    while todo := made.todo():
        made.kills.update((attempt, killed(attempt)) for attempt in todo)
    return made


def killed(attempt: Attempt) -> Kill:
    fault = KNOWN[attempt.fault]
    function = next(iter(conformance_functions()))
    return Kill(function, fault.promise.id, fault.cause.name, 3, 0.5, (function,))


def whole(table: KillTable) -> KillTableRecord:
    return replace(table.as_record(MADE), is_complete=True)


@pytest.mark.usefixtures("one_process")
def test_a_small_kill_table_is_made_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model=gpt2-random", "--seeds=1", "--jobs=1", f"--output={tmp_path}"]
    exit_code = main(["lab", "faults", *SMALL, *options])
    record = KILL_TABLE.read(tmp_path / "faults-partial.json")
    assert list(record.faults) == list(SMALL)
    for row in record.faults.values():
        assert [(kill.seed, kill.broken) for kill in row.kills] == [(1, row.promise)]
        assert not row.own_failures
    assert "a part only" in (tmp_path / "faults-partial.md").read_text(encoding="utf-8")
    assert "2 of 2 faults caught" in capsys.readouterr().out
    assert exit_code == bool(problems(record))


@pytest.mark.usefixtures("one_process")
def test_a_lost_attempt_is_a_problem_and_what_was_done_before_ctrl_c_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(attempt: Attempt, **_: object) -> Hunt:
        if attempt.fault == SMALL[1]:
            raise KeyboardInterrupt
        return Hunt(attempt, killed(attempt))

    def lose(_pool: OneProcess, _function: object, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        return ((task, LostTask("the process died with exit code -9")) for task in tasks)

    options = ["--jobs=1", f"--output={tmp_path}"]
    monkeypatch.setattr("batchproof_lab.faults_command.make_attempt", stop)
    assert main(["lab", "faults", *SMALL, *options]) == 130
    record = KILL_TABLE.read(tmp_path / "faults-partial.json")
    assert (record.is_complete, list(record.faults)) == (False, [SMALL[0]])
    assert "INCOMPLETE" in (tmp_path / "faults-partial.md").read_text(encoding="utf-8")

    monkeypatch.setattr(OneProcess, "run", lose)
    assert main(["lab", "faults", SMALL[0], "--model=gpt2-random", "--seeds=1", *options]) == 1
    assert "the process died with exit code -9" in capsys.readouterr().out
    assert main(["lab", "honest", "static", *options]) == 2
    assert "21 tasks were lost" in capsys.readouterr().err
    honest = HONEST.read(tmp_path / "honest-partial.json")
    assert honest.alarms[0].report == "the process died with exit code -9"
    assert not honest.is_complete


def survive_a_seed(table: KillTable) -> None:
    table.kills[Attempt(SMALL[0], ("gpt2-random",), 2, is_wide=True)] = Kill()


def break_the_suite(table: KillTable) -> None:
    kill = Kill("a::b", "P6", "LEAK", own_failures=("x",))
    table.kills[Attempt(SMALL[0], ("gpt2-random",), 1)] = kill


def name_another_cause(table: KillTable) -> None:
    for attempt in table.kills:
        table.kills[attempt] = Kill("some::test", KNOWN[attempt.fault].promise.id, "RACE")


@pytest.mark.parametrize(
    ("change", "number", "words"),
    [
        (lambda _: None, 0, ""),
        (survive_a_seed, 1, f"fault {SMALL[0]} (P6) survives seed 2 on gpt2-random"),
        (break_the_suite, 1, f"the suite itself broke on fault {SMALL[0]}: x"),
        (name_another_cause, 1, "right cause in 0 of 4 catches, 0%; 85% are required"),
    ],
)
def test_a_table_has_these_problems(
    table: KillTable, change: Callable[[KillTable], None], number: int, words: str
) -> None:
    change(table)
    found = problems(whole(table))
    assert len(found) == number
    assert all(words in each for each in found)
    assert all(each in kill_page(whole(table)) for each in found)


def test_a_fault_that_no_model_shows_alone_is_tried_on_all_together(table: KillTable) -> None:
    assert table.home(SMALL[0]) == ("gpt2-random",)
    table.kills[Attempt(SMALL[0], ("gpt2-random",), 1)] = Kill()
    assert table.home(SMALL[0]) == ("llama-hash",), "the quickest model that shows it"
    others = [each for each in EMBEDDED if each not in table.models]
    together = Attempt(SMALL[1], (*table.models, *others), 1, is_wide=True)
    for attempt in [each for each in table.kills if each.fault == SMALL[1]]:
        del table.kills[attempt]
    for model in table.models:
        table.kills[Attempt(SMALL[1], (model,), 1)] = Kill()
    assert "survives seed 1 on gpt2-random, llama-hash" in problems(whole(table))[-1]
    assert table.on_all_models() == [together]
    for attempt in (together, replace(together, seed=2)):
        table.kills[attempt] = killed(attempt)
    assert not any(SMALL[1] in each for each in problems(whole(table)))
    assert "by all tests on all models" in kill_page(whole(table))


def test_an_idle_test_is_tried_on_one_fault_after_the_other(table: KillTable) -> None:
    table.is_full = True
    idle = [each for each in problems(whole(table)) if "catches no fault" in each]
    assert len(idle) == len(conformance_functions()) - 1
    first = {each.only: each for each in table.on_idle_tests()}
    function = "tests/conformance/test_mask.py::test_the_mask_equals_its_definition"
    assert first[function].fault == SMALL[0], "the one of its promise"
    for attempt in first.values():
        table.kills[attempt] = Kill(caught_by=attempt.only, functions=(attempt.only or "",))
    assert table.on_idle_tests() == []


def test_new_rows_take_the_place_of_old_ones(table: KillTable, tmp_path: Path) -> None:
    old = replace(whole(table), is_full=True)
    path = tmp_path / "faults.json"
    KILL_TABLE.write(old, path)
    part = KillTable({SMALL[0]: KNOWN[SMALL[0]]}, table.models, table.seeds)
    for attempt in part.on_each_model():
        part.kills[attempt] = Kill("some::test", "P6", "RACE", functions=("some::test",))
    fresh = whole(part)
    new = updated_table(whole_table(path, table), fresh)
    assert new.faults == old.faults | {SMALL[0]: fresh.faults[SMALL[0]]}
    assert new.updates[0].faults == (SMALL[0],)
    assert "made later with `--update`" in kill_page(new)
    table.seeds = (7,)
    for place, words in ((path, "has seeds"), (tmp_path / "none.json", "make it first")):
        with pytest.raises(UsageError, match=words):
            whole_table(place, table)


def honest(plan: HonestPlan) -> CampaignState[HonestOutcome]:
    """Does what the plan asks for, with four workloads in each task."""
    made: CampaignState[HonestOutcome] = CampaignState(HonestOutcome, sittings=[MADE])
    for task in plan.tasks(made.outcomes):
        assert task.key not in made.outcomes
        made.add(task.key, HonestOutcome(task, HonestCounts(1, 4, 3, 2, 1)))
    return made


def test_honest_tasks_are_spread_over_engines_and_models_and_more_go_on_where_fewer_stopped() -> None:
    few = HonestPlan(["static", "ragged"], ["float32", "bfloat16"], sweeping_tests(), 3, 5, 1200)
    made = honest(few)
    record = record_of(few, made)
    assert {name: each.workloads for name, each in record.totals.items()} == dict.fromkeys(
        few.dtypes, 1200
    )
    assert set(record.models) >= set(MODELS)
    tasks = [each["float32"].tasks for each in record.engines.values()]
    assert min(tasks) > 0.4 * sum(tasks)
    assert len({(each.task.seed, each.task.dtype) for each in made.outcomes.values()}) == 600
    more = replace(few, wanted=1300)
    assert set(made.outcomes) < set(honest(more).outcomes)
    assert not more.is_complete(made.outcomes)
    key, before = made.outcomes.popitem()
    made.outcomes[key] = replace(before, alarms=("it raised\n  and more",))
    page = honest_page(record_of(few, made))
    assert "ALARMS: 1" in page
    assert "    it raised\n      and more" in page


@pytest.mark.usefixtures("one_process")
def test_a_campaign_of_honest_engines_counts(tmp_path: Path) -> None:
    options = ["--workloads=4", "--examples=3", "--dtype=float32", "--jobs=1", f"--output={tmp_path}"]
    assert main(["lab", "honest", "static", *options]) == 0
    record = HONEST.read(tmp_path / "honest-partial.json")
    assert record.totals["float32"].workloads >= 4
    assert (list(record.engines), record.alarms) == (["static"], ())


def test_the_written_tables_are_of_these_faults_and_tests_and_of_their_pages() -> None:
    """If this fails: `batchproof lab faults`, which writes the first of them."""
    record, honest = KILL_TABLE.read(WHOLE), HONEST.read(WHOLE.with_name("honest.json"))
    assert WHOLE.with_suffix(".md").read_text(encoding="utf-8") == kill_page(record)
    assert WHOLE.with_name("honest.md").read_text(encoding="utf-8") == honest_page(honest)
    assert (set(record.faults), set(record.tests)) == (set(KNOWN), set(conformance_functions()))
    assert (record.is_complete, record.is_full, problems(record)) == (True, True, [])
    assert len(record.seeds) >= 3
    for name, row in record.faults.items():
        fault = KNOWN[name]
        written = (row.lie, row.promise, row.cause, row.thread)
        assert written == (fault.summary, fault.promise.id, fault.cause.name, fault.thread), name
        assert {kill.seed for kill in row.kills if kill.caught_by} == set(record.seeds), name
        assert row.models or len(row.home) > 1, name
