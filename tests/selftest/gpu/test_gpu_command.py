"""`.ci/gpu` runs where minutes are expensive, so its mistakes are found here, without a GPU."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from batchproof.bench.spec_files import select_specs
from batchproof.models.shapes import SHAPES
from batchproof.places import ROOT
from batchproof.run.registry import resolve_engine
from tests.gpu import driver as driver_module
from tests.gpu import smoke
from tests.gpu.driver import Driver, Outcome
from tests.gpu.plan import ENGINE, PART_S, RUNGS, UNPREPARED, Options, Plan, Setting, Step

PARTS = "correct, figures"


def run(*arguments: str, out: Path) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHON": sys.executable, "OUT": str(out)}
    command = [str(ROOT / ".ci" / "gpu"), *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def step(name: str, code: str, *more: str, limit_s: int = 60, **facts: Any) -> Step:
    return Step(name, limit_s, ("-c", code, *more), **facts)


def outcomes(
    out: Path, steps: Sequence[Step], rungs: Sequence[Options] = (), for_s: float = PART_S
) -> list[Outcome]:
    driver = Driver(out, rungs)
    driver.run("part", steps, for_s)
    return driver.outcomes


@pytest.fixture(params=[False, True], ids=["on a GPU", "dry"])
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> Setting:
    return Setting(tmp_path, is_dry=request.param)


@pytest.fixture
def plan(setting: Setting) -> Plan:
    on_first = setting.rungs[0]
    return {part: tuple(each.on(on_first) for each in steps) for part, steps in setting.plan().items()}


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


def test_each_part_ends_within_nine_minutes(plan: Plan) -> None:
    assert ", ".join(plan) == PARTS
    assert PART_S <= 540
    for part in plan.values():
        assert sum(each.limit_s for each in part if not each.is_ladder) <= PART_S


def test_what_the_steps_name_is_there(plan: Plan) -> None:
    for each in steps(plan):
        assert all(find_spec(name) for name in values(each, "-m"))
        assert all(name in SHAPES for name in values(each, "--shape"))
        assert all(resolve_engine(name) for name in values(each, "--engine"))
        assert select_specs(values(each, "--workload"), on_cpu=False)


def test_a_step_that_fails_or_hangs_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver_module, "GRACE_S", 0.2)
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    child = "import subprocess, sys, time; time.sleep(60)"
    hangs = f"{deaf}; import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    found = outcomes(
        tmp_path,
        [
            step("hangs", hangs, limit_s=1),
            step("fails", "print('how far it came'); raise SystemExit(3)"),
            step("is good", "print('1 passed')"),
        ],
        for_s=121.5,
    )
    states = [(each.state, each.finding) for each in found]
    assert states == [("STOPPED", ""), ("FAILED", "how far it came"), ("ok", "1 passed")]
    log, shown = (tmp_path / "part-log.txt").read_text(), capsys.readouterr().out
    assert all(f"=== {each}" in text for each in found for text in (log, shown))


def test_steps_get_the_first_rung_that_passes(tmp_path: Path) -> None:
    tells = "import sys; print('figure of', sys.argv[1]); raise SystemExit(sys.argv[1] in sys.argv[2:])"
    ladder = step("smoke", tells, ENGINE, "paged", "paged?graphs=false", is_ladder=True)
    steps = [step("figures", tells, ENGINE), step("float32", tells, UNPREPARED)]
    steps.append(step("kernels", "print('good')"))
    found = outcomes(tmp_path, [ladder, ladder, *steps], RUNGS[2::-1])
    assert [(each.name, each.state, each.finding) for each in found] == [
        ("smoke", "FAILED", "figure of paged?graphs=false"),
        ("smoke", "ok", "figure of paged?compile=false"),
        ("figures", "ok", "figure of paged?compile=false"),
        ("float32", "ok", "figure of paged?compile=false&prepare=false"),
        ("kernels", "ok", "good"),
    ]
    found = outcomes(tmp_path, [ladder, *steps], RUNGS[:1])
    assert [each.state for each in found] == ["FAILED", "not run", "not run", "ok"]


def test_a_run_that_is_cut_off_ends_its_step_and_tells_what_it_has(tmp_path: Path) -> None:
    wait = "import time\ntry: print('waits', flush=True); time.sleep(60)\nfinally: print('kept')"
    code = (
        "from tests.gpu import __main__ as main, plan\n"
        "done = plan.Step('done', 9, ('-c', 'pass'))\n"
        f"slow = plan.Step('slow', 60, ('-c', {wait!r}))\n"
        "plan.Setting.plan = lambda self: {'correct': (done, slow)}\n"
        "main.main([])"
    )
    environment = os.environ | {"OUT": str(tmp_path), "PYTHONPATH": f"harness:implementations:{ROOT}"}
    run = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    log = tmp_path / "correct-log.txt"
    while not (log.exists() and "\nwaits\n" in log.read_text()):
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    _, done, slow, *_ = run.communicate(timeout=30)[0].partition("##### summary")[2].splitlines()
    assert (done.split()[:2], slow.split()[:2]) == (["done", "ok"], ["slow", "STOPPED"])
    assert "kept" in log.read_text()


def test_an_engine_that_has_given_up_an_option_fails_its_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SimpleNamespace(notes=("its layers are not compiled: there is no compiler",))
    spec = SimpleNamespace(factory=lambda *_: slow)
    monkeypatch.setattr(smoke, "resolve_engine", lambda *_: spec)
    with pytest.raises(RuntimeError, match="without some of its options: its layers are not compiled"):
        smoke._build_s("paged", SimpleNamespace(device=torch.device("cpu")))  # type: ignore[arg-type]
