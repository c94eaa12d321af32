"""Mutants: where a source can be changed, how the change is imported, and what the command says."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path

import pytest

from batchproof.__main__ import main
from batchproof.places import ROOT
from batchproof_lab.mutation.mutant_task import Baseline, MutantFate, MutantTask
from batchproof_lab.mutation.mutants_command import recorded
from batchproof_lab.mutation.mutants_page import judgements, mutants_page, open_survivors
from batchproof_lab.mutation.mutated_import import mutated, statements_noted
from batchproof_lab.mutation.operators import mutants_of
from batchproof_lab.record_kinds import MUTANTS
from tests.selftest.one_process import OneProcess

STATIC = ROOT / "implementations" / "batchproof_engines" / "static.py"
COMMAND = "batchproof_lab.mutation.mutants_command"


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("a < b", ["(a <= b)"]),
        ("a == b == c", []),
        ("a + 2", ["(a - 2)", "3", "1"]),
        ("a and not b", ["(a or not b)", "b"]),
        ("x = True", ["False"]),
        ("f(-a)", ["pass", "a"]),
        ("min(a, b)", ["pass", "max(a, b)"]),
        ("x = zip(a, b, strict=True)", []),
        ("x = a[1:]", ["a[:]", "2", "0"]),
        ("if a:\n    f = b", ["(not a)"]),
        ("self.a = b", ["pass"]),
        ("for a in b:\n    break", ["continue"]),
        ("def f(a: int = 0) -> 'T | None': 'It adds 1.'", ["1"]),
        ("raise ValueError(f'{a + 1} is not {1}')", []),
        ("@cache(1)\nclass A(B[2]): pass", []),
    ],
)
def test_a_point_has_these_changes(tmp_path: Path, text: str, changes: list[str]) -> None:
    path = tmp_path / "engine.py"
    path.write_text(text)
    found = mutants_of(path)
    assert [each.after for each in found] == changes
    assert len({each.name(tmp_path) for each in found}) == len(found)
    for each in found:
        ast.parse(each.source())


def test_the_engine_is_imported_with_the_change_and_afterwards_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mutable_engine.py").write_text("SIZE = 3\nif SIZE > 5:\n    SIZE = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "mutable_engine.py"
    before = importlib.import_module("mutable_engine")
    mutant = next(each for each in mutants_of(path) if each.after == "4")
    with mutated(mutant, [tmp_path]):
        assert importlib.import_module("mutable_engine").SIZE == 4
    assert sys.modules["mutable_engine"] is before
    with statements_noted([path]) as noted:
        importlib.import_module("mutable_engine")
    assert {line for _, line in noted} == {1, 2}
    del sys.modules["mutable_engine"]


def _run(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *options: str,
    stops: bool = False,
    num_passed: int = 9,
) -> int:
    def judge_mutant(task: MutantTask) -> MutantFate:
        if stops:
            raise KeyboardInterrupt
        assert task.num_passed == (num_passed,), "or a test that a mutant loses is not missed"
        return MutantFate("tests/a.py::test", "P1", "wrong") if task.mutant.line % 2 else MutantFate()

    statements = {(str(STATIC), each.statement) for each in mutants_of(STATIC)}
    monkeypatch.setattr("batchproof_lab.mutation.sampling.WorkerPool", OneProcess)
    monkeypatch.setattr("batchproof_lab.campaign.WorkerPool", OneProcess)
    monkeypatch.setattr(
        "batchproof_lab.mutation.sampling.judge_baseline",
        lambda _: Baseline((num_passed,), (), statements),
    )
    monkeypatch.setattr(f"{COMMAND}.judge_mutant", judge_mutant)
    return main(["lab", "mutants", "--jobs=1", f"--output={tmp_path}", *options])


def test_a_survivor_is_named_until_it_is_judged_and_a_hole_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, tmp_path, "static", "--mutants=8", "--name=static") == 1
    survivors = [
        line.removeprefix("survived, not judged: ") for line in capsys.readouterr().out.splitlines()
    ]
    path = tmp_path / "mutants" / "static.json"
    record = MUTANTS.read(path)
    assert [each.name for each in record.mutants if each.outcome == "survived"] == survivors
    judged = {name: ["equivalent", "It changes nothing."] for name in survivors}
    (tmp_path / "mutants" / "judged.yaml").write_text(json.dumps(judged))
    assert _run(monkeypatch, tmp_path) == 0
    assert "It changes nothing." in (tmp_path / "mutants" / "README.md").read_text()
    hole = {survivors[0]: ["hole", "No test looks."]}
    (tmp_path / "mutants" / "judged.yaml").write_text(json.dumps(judged | hole))
    again = ("static", "--name=static")
    assert _run(monkeypatch, tmp_path, *again, stops=True) == 1, "today's suite has tried it"
    monkeypatch.setattr(f"{COMMAND}.code_digest", lambda _: "another suite")
    assert _run(monkeypatch, tmp_path, *again, stops=True) == 130
    assert _run(monkeypatch, tmp_path, *again, num_passed=10) == 1, "the suite has grown"
    assert f"survived, hole: {survivors[0]}" in capsys.readouterr().out
    assert MUTANTS.read(path).mutants == record.mutants
    assert len(MUTANTS.read(path).made.sittings) == 2


def test_the_written_page_is_made_of_the_written_runs_and_every_survivor_is_judged() -> None:
    folder = ROOT / "results" / "mutants"
    runs, judged = recorded(folder), judgements(folder)
    assert (folder / "README.md").read_text(encoding="utf-8") == mutants_page(runs, judged)
    known = ("survived, hole: ", "not tried to the end: ")
    assert [each for each in open_survivors(runs.values(), judged) if not each.startswith(known)] == []


@pytest.mark.parametrize(
    ("judged", "message"),
    [
        ("a: 3", "'a' has 3, but must have [judgement, why] with one of equivalent, speed"),
        ("[a]", "must be a mapping of names of mutants to [judgement, why]"),
    ],
)
def test_a_wrong_judgement_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], judged: str, message: str
) -> None:
    (tmp_path / "mutants").mkdir()
    (tmp_path / "mutants" / "judged.yaml").write_text(judged)
    assert main(["lab", "mutants", f"--output={tmp_path}"]) == 2
    assert message in capsys.readouterr().err
