"""Mutants: where a source can be changed, how the change is imported, and what the command says."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

from batchproof.__main__ import main
from batchproof.errors import BatchproofError
from batchproof_lab import mutants_command
from batchproof_lab.mutants import mutants_of, mutated
from batchproof_lab.mutants_command import MutantFate, MutantTask, judge_mutant
from batchproof_lab.suite_run import Catch, SuiteOutcome


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
    assert len({each.name for each in found}) == len(found)
    for each in found:
        ast.parse(each.source())


def test_a_mutant_is_imported_inside_alone_and_judged_by_what_the_suite_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mutable_engine.py"
    path.write_text("SIZE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = importlib.import_module("mutable_engine")
    mutant = next(each for each in mutants_of(path) if each.after == "4")
    with mutated(mutant, tmp_path):
        assert importlib.import_module("mutable_engine").SIZE == 4
    with mutated(None, tmp_path):
        assert importlib.import_module("mutable_engine").SIZE == 3
    assert sys.modules["mutable_engine"] is before

    unchanged = SuiteOutcome(num_passed=9)
    outcomes: list[SuiteOutcome] = []
    monkeypatch.setattr(mutants_command, "run_suite", lambda *_: outcomes.pop(0))
    caught = SuiteOutcome([Catch("a.py::test[x]", ("P1",), "P1", "long", "wrong")], 3, exit_status=1)
    for place, (found, killed_by) in enumerate(
        (
            (SuiteOutcome(num_passed=9), None),
            (caught, "a.py::test"),
            (SuiteOutcome(num_passed=8, num_skipped=1), "the table of the run"),
            (SuiteOutcome(num_skipped=9), "the table of the run"),
            (SuiteOutcome(exit_status=4, output="SyntaxError\n"), "before the first test"),
        )
    ):
        outcomes[:] = [unchanged, found]
        assert judge_mutant(MutantTask(mutant, "mine", tmp_path, place)).killed_by == killed_by
    outcomes[:] = [caught]
    with pytest.raises(BatchproofError, match="does not pass the suite: a"):
        judge_mutant(MutantTask(mutant, "mine", tmp_path, 99))


@pytest.mark.usefixtures("one_process")
def test_a_survivor_is_named_and_what_was_done_before_ctrl_c_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[MutantTask] = []

    def judge(task: MutantTask) -> MutantFate:
        tried.append(task)
        if len(tried) == 3:
            raise KeyboardInterrupt
        return MutantFate("tests/a.py::test", "wrong") if len(tried) == 1 else MutantFate()

    monkeypatch.setattr(mutants_command, "judge_mutant", judge)
    command = ["lab", "mutants", "static", "--mutants=4", "--jobs=1", f"--output={tmp_path}"]
    assert main(command) == 130
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "2 of 4 mutants tried, 1 survived" in out
    assert "4 of 4 mutants tried, 3 survived" in out
    assert len({each.key for each in tried}) == 4
    assert tried[1].first == ("tests/a.py::test",), "the test that killed most runs first"
    page = (tmp_path / "mutants.md").read_text()
    assert f"| `{tried[1].key}` | SURVIVED |" in page
    assert f"| `{tried[0].key}` | tests/a.py::test | wrong |" in page
