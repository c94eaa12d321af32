"""`pytest --benchmark-only`: what a person sees, and the errors for wrong input."""

import json
import shutil
from pathlib import Path

import pytest

from batchproof.bench import hardware
from batchproof.places import ROOT
from tests.selftest.conftest import RunSuite as Run

SMALL = [
    *("--benchmark-only", "--model=gpt2-random", "--workload=bimodal", "--num-requests=5"),
    *("--prompt-len=2:6", "--cap=2:6", "--slots=2", "--laps=2"),
]
FILE = Path("out.json")  # in the folder in which the session inside runs
INTO_FILE = f"--results={FILE}"


@pytest.fixture
def run_benchmark(run_suite: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The session inside is no worker of xdist, even where the one around it is. Its ceilings are
    measured in no time."""
    monkeypatch.setitem(hardware.SIZES, "cpu", hardware._Sizes(1 << 16, 32, 1))
    monkeypatch.setattr(hardware, "SECONDS_OF_ROUNDS", 0.0)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    shutil.copy(ROOT / "tests" / "benchmarks" / "test_throughput.py", tmp_path)
    return run_suite


def test_engines_are_compared_and_the_file_is_complete(run_benchmark: Run, tmp_path: Path) -> None:
    session = run_benchmark(
        *SMALL, "--engine=static", "--engine=ragged", INTO_FILE, "--benchmark-json=theirs.json"
    )
    assert session.exit_status == 0, session.output
    assert "ragged over static" in session.output
    assert "5 requests over 2 slots" in session.output
    result = json.loads(FILE.read_text())
    assert result["footer"]["num_comparisons"] == 1
    assert result["header"]["clock"] == "process"
    assert result["header"]["made"]["command"].startswith("pytest")
    (comparison,) = result["comparisons"]
    assert [row["verdict"] for row in comparison["rows"]] == ["VALID", "VALID"]
    theirs = json.loads((tmp_path / "theirs.json").read_text())
    assert theirs["machine_info"]["batchproof"]["threads"] == 1
    clock = f"{comparison['clock']}_s"  # wall, if an engine could not compute for long
    mine = {row["engine"]: [each[clock] for each in row["rounds"]] for row in comparison["rows"]}
    for each in theirs["benchmarks"]:
        assert each["stats"]["data"] == mine[each["extra_info"]["engine"]]
        assert each["extra_info"]["workload_hash"] == comparison["workload"]["hash"]


def test_an_invalid_row_fails_and_prints_no_throughput(run_benchmark: Run) -> None:
    session = run_benchmark(*SMALL, "--engine=fault:cap_off_by_one", "--engine=static")
    assert session.exit_status == 1
    line = next(x for x in session.output.splitlines() if x.startswith("fault:cap_off_by_one  INVALID"))
    assert line.split()[2:] == ["-"] * 7
    assert "P2 caps is broken" in session.output
    assert "1 failed, 1 passed" in session.output
    assert "PytestBenchmarkWarning" not in session.output
    assert "over static" not in session.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--laps=3"], "--laps belongs to benchmarks: add --benchmark-only"),
        ([*SMALL, "--shape=tiny"], "exclude each other"),
        (["--benchmark-only", "--model=tiny", "--cap=9999"], "the model's context holds 8192"),
        ([*SMALL, "--isolate"], "--isolate cannot be had: one process takes the times of a benchmark"),
        ([*SMALL, "--verify=some"], "--verify is 'some', but must be 'all' or a number of requests"),
        ([*SMALL, "--threads=99999"], "--threads is 99999, but must be from 1 to "),
        ([*SMALL, "--results=nowhere/out.json"], "there is no folder 'nowhere'"),
    ],
)
def test_wrong_input_gets_one_sentence(run_benchmark: Run, arguments: list[str], words: str) -> None:
    run_benchmark(*arguments).require_usage_error(words)


def test_only_selected_engines_take_part(run_benchmark: Run) -> None:
    engines = ("--engine=static", "--engine=ragged", "-k", "static")
    session = run_benchmark(*SMALL, *engines, INTO_FILE)
    assert session.exit_status == 0, session.output
    (comparison,) = json.loads(FILE.read_text())["comparisons"]
    assert [row["engine"] for row in comparison["rows"]] == ["static"]


HOLDS_MUCH = """
from batchproof_engines.static import static as Engine
HELD = b"1" * 500_000_000
"""


def test_memory_is_the_peak_of_a_process_of_the_engines_own(run_benchmark: Run) -> None:
    Path("mine.py").write_text(HOLDS_MUCH)
    session = run_benchmark(*SMALL, "--engine=mine.py:Engine", "--laps=1", "--memory", INTO_FILE)
    assert session.exit_status == 0, session.output
    (comparison,) = json.loads(FILE.read_text())["comparisons"]
    (row,) = comparison["rows"]
    assert 6e8 < row["peak_memory_bytes"] < 1.5e9, "torch and the model take 0.3 GB"
    assert f"{row['peak_memory_bytes'] / 1e9:.2f} GB" in session.output


def test_memory_that_is_unknown_costs_no_figure(
    run_benchmark: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchproof.bench.timed_engine.peak_memory", lambda *_: "it was ended")
    session = run_benchmark(*SMALL, "--engine=static", "--memory", INTO_FILE)
    assert session.exit_status == 0, session.output
    assert "static: its memory is unknown: it was ended" in session.output
    (row,) = json.loads(FILE.read_text())["comparisons"][0]["rows"]
    assert (row["verdict"], row["peak_memory_bytes"]) == ("VALID", None)
