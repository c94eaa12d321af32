"""`pytest --benchmark-only`: what a person sees, and the errors for wrong input."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from batchproof.__main__ import main
from batchproof.bench.reading import load
from batchproof.cli import bench_command
from batchproof.places import CASES, ROOT
from batchproof.plugin import bench_options
from batchproof.plugin.bench_fixtures import ReplayClock
from tests.selftest.conftest import RunSuite as Run

CORE = min(getattr(os, "sched_getaffinity", lambda _: {0})(0))  # one that this process may use
SMALL = [
    "--benchmark-only",
    "--model=gpt2-random",
    "--workload=bimodal",
    "--num-requests=5",
    "--prompt-len=2:6",
    "--cap=2:6",
    "--slots=2",
    "--laps=2",
]


FILE = "out.json"  # in the folder in which the session inside runs
INTO_FILE = f"--results={FILE}"


@pytest.fixture
def run_benchmark(run_suite: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The session inside is no worker of xdist, even where the one around it is."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    for name in ("test_throughput.py", "test_growth.py"):
        shutil.copy(ROOT / "tests" / "benchmarks" / name, tmp_path / name)
    return run_suite


def test_engines_are_compared_and_the_file_is_complete(run_benchmark: Run, tmp_path: Path) -> None:
    session = run_benchmark(
        *SMALL, "--engine=static", "--engine=ragged", INTO_FILE, "--benchmark-json=theirs.json"
    )
    assert session.exit_status == 0, session.output
    assert "ragged over static" in session.output
    assert "5 requests over 2 slots" in session.output
    result = load(FILE)
    assert result["footer"]["num_comparisons"] == 1
    assert result["header"]["clock"] == "process"
    assert result["header"]["made"]["command"].startswith("pytest")
    rows = result["comparisons"][0]["rows"]
    assert [row["verdict"] for row in rows] == ["VALID", "VALID"]
    theirs = json.loads((tmp_path / "theirs.json").read_text())
    assert theirs["machine_info"]["batchproof"]["threads"] == 1
    clock = result["comparisons"][0]["clock"]  # wall, if an engine could not compute for long
    mine = {row["engine"]: [each[f"{clock}_s"] for each in row["rounds"]] for row in rows}
    for each in theirs["benchmarks"]:
        assert each["stats"]["data"] == mine[each["extra_info"]["engine"]]
        assert each["extra_info"]["workload_hash"] == result["comparisons"][0]["workload"]["hash"]


def test_an_invalid_row_fails_and_prints_no_throughput(run_benchmark: Run) -> None:
    session = run_benchmark(*SMALL, "--engine=fault:cap_off_by_one", "--engine=static")
    assert session.exit_status == 1
    line = next(x for x in session.output.splitlines() if x.startswith("fault:cap_off_by_one  INVALID"))
    assert line.split()[2:] == ["-"] * 7
    assert "P2 caps is broken" in session.output
    assert "1 failed, 1 passed" in session.output
    assert "PytestBenchmarkWarning" not in session.output
    assert "over static" not in session.output.replace("over static waves", "")


def test_only_selected_engines_take_part(run_benchmark: Run) -> None:
    session = run_benchmark(*SMALL, "--engine=static", "--engine=ragged", INTO_FILE, "-k", "static")
    assert session.exit_status == 0, session.output
    assert [row["engine"] for row in load(FILE)["comparisons"][0]["rows"]] == ["static"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workload=nope"], "--workload 'nope' is unknown; choose one of bimodal"),
        (["--shape=huge"], "--shape 'huge' is unknown; choose one of tiny"),
        (["--shape=tiny"], "exclude each other"),
        (["--laps=0"], "--laps is 0, but must be at least 1"),
        (["--threads=0"], "--threads is 0, but must be at least 1"),
        (["--pin=zero"], "--pin 'zero' must read like 0,2 or 4-7"),
        (["--pin=4000"], f"--pin '4000' must name cores of this process: {CORE}"),
        ([f"--pin={CORE}", "--threads=2"], f"--pin '{CORE}' has 1 core(s), but --threads asks for 2"),
        (["--verify=some"], "--verify is 'some', but must be 'all' or a number of requests"),
        (["--growth-for=-1"], "--growth-for is -1, but must be 0 to 86400 seconds"),
        (["--cap=9:2"], "--cap"),
        (["--prompt-len=x"], "--prompt-len is 'x'"),
        (["--num-requests=0"], "--num-requests"),
        (["--results=nowhere/out.json"], "there is no folder 'nowhere'"),
        (["--results=out.txt"], "must name a file that ends in .json"),
    ],
)
def test_wrong_input_gets_one_sentence(run_benchmark: Run, arguments: list[str], words: str) -> None:
    session = run_benchmark(*SMALL, *arguments)
    assert session.exit_status == pytest.ExitCode.USAGE_ERROR
    assert words in session.output
    assert "Traceback" not in session.output


def test_everything_runs_on_the_cores_that_are_named(
    run_benchmark: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[object] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append((pid, *cores)))
    run_benchmark(*SMALL, "--engine=static", f"--pin={CORE}", INTO_FILE)
    assert pinned == [(0, CORE)]
    assert load(FILE)["header"]["device"]["cores"] == sorted(os.sched_getaffinity(0))


CLOCK_STOPPER = """
import time
from batchproof_engines.static import static

def Engine(model, config):
    inner, sleep = static(model, config), time.sleep
    time.perf_counter = time.process_time = time.monotonic = lambda: 0.0
    class Slow:
        def generate(self, requests):
            sleep(0.2)
            return inner.generate(requests)
    return Slow()
"""


def test_an_engine_in_a_process_of_its_own_does_not_touch_the_clock(
    run_benchmark: Run, tmp_path: Path
) -> None:
    (tmp_path / "stopper.py").write_text(CLOCK_STOPPER)
    session = run_benchmark(*SMALL, "--isolate", "--engine=stopper.py:Engine", "--laps=1", INTO_FILE)
    assert session.exit_status == 0, session.output
    row = load(FILE)["comparisons"][0]["rows"][0]
    assert (row["engine"], row["verdict"]) == ("stopper.py:Engine", "VALID")
    assert 0.2 < row["rounds"][0]["wall_s"] < 20
    assert row["cores"] > 0


def test_a_benchmark_option_without_a_benchmark_is_an_error(run_benchmark: Run) -> None:
    session = run_benchmark("--laps=3")
    assert session.exit_status == pytest.ExitCode.USAGE_ERROR
    assert "--laps belongs to benchmarks: add --benchmark-only" in session.output


def test_a_workload_beyond_the_context_is_one_sentence(run_benchmark: Run) -> None:
    session = run_benchmark(*SMALL, "--prompt-len=200:200", "--cap=100:100", "--engine=static")
    assert session.exit_status == 1
    assert "the model's context holds 256" in session.output
    assert "Traceback" not in session.output


def test_a_replayed_clock_gives_what_was_loaded_and_no_more() -> None:
    clock = ReplayClock()
    clock.load([0.5, 2.0])
    readings = [clock() for _ in range(4)]
    assert [readings[1] - readings[0], readings[3] - readings[2]] == [0.5, 2.0]
    with pytest.raises(AssertionError):
        clock()


def test_the_help_of_the_command_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    named = re.findall(r"^  --([a-z-]+) ", capsys.readouterr().out, re.MULTILINE)
    assert sorted(named) == sorted(("released", *bench_options.OPTIONS))


@pytest.mark.parametrize(
    ("given", "workloads"),
    [([], [str(CASES / "benchmarks" / "queue")]), (["--laps=3", "--workload=bs1"], ["bs1"])],
)
def test_the_field_is_measured_by_one_command(
    monkeypatch: pytest.MonkeyPatch, given: list[str], workloads: list[str]
) -> None:
    asked: list[list[str]] = []

    def run_pytest(_tests: Path, arguments: list[str], options: list[str]) -> int:
        asked.append([*arguments, *options])
        return 0

    monkeypatch.setattr(bench_command, "run_pytest", run_pytest)
    assert main(["bench", "--released", *given]) == 0
    assert asked[0][: len(bench_command.RELEASED)] == list(bench_command.RELEASED)
    found = [each.removeprefix("--workload=") for each in asked[0] if "--workload" in each]
    assert found == workloads
    assert set(given) <= set(asked[0])
