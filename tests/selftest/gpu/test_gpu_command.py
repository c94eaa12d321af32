"""`.ci/gpu` runs where minutes are expensive, so its mistakes are found here, without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from batchproof.bench.spec_files import chosen
from batchproof.models.shapes import SHAPES
from batchproof.places import ROOT
from batchproof.run.registry import resolve_engine
from tests.gpu import driver as driver_module
from tests.gpu.driver import Driver, Outcome
from tests.gpu.plan import CONFORMANCE, LOG, MEASURES, PART_S, Plan, Setting, Step

PARTS = "correct, ceilings, figures"


def run(*arguments: str, out: Path) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHON": sys.executable, "OUT": str(out)}
    command = [str(ROOT / ".ci" / "gpu"), *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def step(name: str, code: str, limit_s: int = 60, shown: str = ".") -> Step:
    return Step(name, limit_s, ("-c", code), shown)


@pytest.fixture(params=[False, True], ids=["on a GPU", "dry"])
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> Plan:
    return Setting(tmp_path, is_dry=request.param).plan()


def steps(plan: Plan) -> Iterator[Step]:
    return (each for part in plan.values() for each in part)


def values(step: Step, flag: str) -> list[str]:
    """Returns the argument after each `flag`."""
    pairs = zip(step.arguments, step.arguments[1:], strict=False)
    return [value for name, value in pairs if name == flag]


def test_an_unknown_part_is_one_error_that_names_the_choices(tmp_path: Path) -> None:
    ran = run("correctness", "--dry", out=tmp_path / "out")
    assert ran.returncode == 2
    assert ran.stderr == f"error: part 'correctness' is unknown; choose from {PARTS}, or --dry\n"
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    ran = run("--dry", "correct", out=tmp_path / "out")
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: OUT=")


def test_each_part_ends_within_nine_minutes(plan: Plan) -> None:
    assert ", ".join(plan) == PARTS
    assert PART_S <= 540
    for part in plan.values():
        assert sum(each.limit_s for each in part) <= PART_S


def test_all_parts_together_leave_at_most_eight_files_in_one_folder(plan: Plan, tmp_path: Path) -> None:
    flags = ("--table", "--results")
    files = {Path(file) for each in steps(plan) for flag in flags for file in values(each, flag)}
    files |= {tmp_path / LOG, tmp_path / MEASURES}
    assert tmp_path / CONFORMANCE in files
    assert len(files) <= 8
    for file in files:
        assert file.parent == tmp_path
        assert re.fullmatch(r"[A-Za-z0-9._-]+", file.name)


def test_what_the_steps_name_is_there(plan: Plan) -> None:
    for each in steps(plan):
        assert all(find_spec(name) for name in values(each, "-m"))
        assert all(name in SHAPES for name in values(each, "--shape"))
        assert all(resolve_engine(name) for name in values(each, "--engine"))
        assert chosen(values(each, "--workload"), on_cpu=False)


def test_the_ways_in_which_steps_are_measured_are_options_of_the_engine() -> None:
    from tests.gpu.steps import ON_CPU, WAYS, engine_text

    for options in WAYS.values():
        assert resolve_engine(engine_text(options))
        assert resolve_engine(engine_text({**ON_CPU, **options}))


def test_a_step_that_fails_or_hangs_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver_module, "GRACE_S", 0.2)
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    child = "import subprocess, sys, time; time.sleep(60)"
    hangs = f"{deaf}; import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    outcomes = Driver(tmp_path / LOG).run(
        "part",
        [
            step("hangs", hangs, limit_s=1),
            step("fails", "print('how far it came'); raise SystemExit(3)"),
            step("crashes", "import os; os.abort()"),
            step("lacks something", "print('there is no Triton'); raise SystemExit(77)"),
            step("is good", "print('1 passed')"),
        ],
        for_s=241.5,
    )
    states = [(each.state, each.finding) for each in outcomes]
    assert states[:3] == [("STOPPED", ""), ("FAILED", "how far it came"), ("FAILED", "")]
    assert states[3:] == [("skipped", "there is no Triton"), ("ok", "1 passed")]
    log, shown = (tmp_path / LOG).read_text(), capsys.readouterr().out
    for each in outcomes:
        assert f"=== {each}" in log
        assert f"=== {each}" in shown


def test_where_time_is_short_the_steps_that_are_left_say_so(tmp_path: Path) -> None:
    part = [step("first", "print('done')", limit_s=30), step("last", "print('done')", limit_s=30)]
    outcomes = Driver(tmp_path / LOG).run("part", part, for_s=35)
    assert [each.state for each in outcomes] == ["no time left", "ok"]  # the last has its 30 s


def test_the_log_keeps_the_first_failures_and_the_summary_of_a_step_that_says_too_much(
    tmp_path: Path,
) -> None:
    (tmp_path / LOG).write_text("what another part has said\n")
    much = "print('first failure'); print(('x' * 99 + '\\n') * 20_000); print('2 failed')"
    (outcome,) = Driver(tmp_path / LOG).run("part", [step("loud", much, shown="failed")])
    log = (tmp_path / LOG).read_text()
    assert outcome.finding == "2 failed"
    assert log.startswith("what another part has said\n")
    for said in ("first failure", "bytes left out", "2 failed"):
        assert said in log
    assert len(log) < 500_000


def test_what_is_no_success_makes_the_exit_status() -> None:
    good = {state for state in ("ok", "skipped", "FAILED", "STOPPED", "no time left")
            if Outcome("a", state, 1.0).is_good}  # fmt: skip
    assert good == {"ok", "skipped"}
