"""`pytest --benchmark-only`: what a person sees, and the errors for wrong input."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from batchproof.bench import ceilings
from batchproof.bench.reading import load
from batchproof.places import ROOT
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
    """The session inside is no worker of xdist, even where the one around it is. Its ceilings are
    measured in no time."""
    monkeypatch.setitem(ceilings.SIZES, "cpu", ceilings._Sizes(1 << 16, 32, 1))
    monkeypatch.setattr(ceilings, "SECONDS_OF_ROUNDS", 0.0)
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workload=nope"], "--workload 'nope' is unknown; choose one of bimodal"),
        (["--shape=tiny"], "exclude each other"),
        (["--laps=0"], "--laps is 0, but must be at least 1"),
        (["--pin=zero"], "--pin 'zero' must read like 0,2 or 4-7"),
        (["--pin=4000"], f"--pin '4000' must name cores of this process: {CORE}"),
        ([f"--pin={CORE}", "--threads=2"], f"--pin '{CORE}' has 1 core(s), but --threads asks for 2"),
        (["--verify=some"], "--verify is 'some', but must be 'all' or a number of requests"),
        (["--growth-for=-1"], "--growth-for is -1, but must be 0 to 86400 seconds"),
        (["--prompt-len=x"], "--prompt-len is 'x'"),
        (["--results=nowhere/out.json"], "there is no folder 'nowhere'"),
    ],
)
def test_wrong_input_gets_one_sentence(run_benchmark: Run, arguments: list[str], words: str) -> None:
    run_benchmark(*SMALL, *arguments).require_usage_error(words)


def test_options_of_benchmarks_belong_to_benchmarks(run_benchmark: Run) -> None:
    session = run_benchmark("--laps=3")
    session.require_usage_error("--laps belongs to benchmarks: add --benchmark-only")


def test_only_selected_engines_take_part_on_the_cores_that_are_named(
    run_benchmark: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workload that the model is too small for is one sentence."""
    pinned: list[object] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append((pid, *cores)))
    engines = ("--engine=static", "--engine=ragged", "-k", "static")
    session = run_benchmark(*SMALL, *engines, f"--pin={CORE}", INTO_FILE)
    assert session.exit_status == 0, session.output
    assert [row["engine"] for row in load(FILE)["comparisons"][0]["rows"]] == ["static"]
    assert pinned == [(0, CORE)]
    assert load(FILE)["header"]["device"]["cores"] == sorted(os.sched_getaffinity(0))
    session = run_benchmark(*SMALL, "--prompt-len=200:200", "--cap=100:100", "--engine=static")
    assert session.exit_status == 1
    assert "the model's context holds 256" in session.output
    assert "Traceback" not in session.output


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
