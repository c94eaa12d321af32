"""`python -m batchproof compare A B`: like with like, what is slower, and what may not be compared."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchproof.__main__ import main
from batchproof.places import ROOT
from tests.selftest.bench import samples

Result = dict[str, Any]


class Compared:
    """Exit code, stdout, stderr."""

    def __init__(self, exit_code: int, output: str, errors: str) -> None:
        self.exit_code, self.output, self.errors = exit_code, output, errors
        self.lines = output.splitlines()

    def row(self, engine: str, workload: str = "bimodal") -> str:
        section = self.output.partition(f"\n{workload}, ")[2].split("\n\n")[0]
        found = [line for line in section.splitlines() if re.match(rf"  {re.escape(engine)} ", line)]
        return found[0]


Compare = Callable[..., Compared]


@pytest.fixture
def compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    def run(a: Result, b: Result | None, *arguments: str) -> Compared:
        paths = [str(tmp_path / f"{name}.json") for name in "ab"]
        for path, each in zip(paths, (a, b), strict=True):
            if each is not None:
                samples.saved(Path(path), each)
        capsys.readouterr()
        exit_code = main(["compare", *paths, *arguments])
        captured = capsys.readouterr()
        return Compared(exit_code, captured.out, captured.err)

    return run


def slower(factor: float, *, engine: str = "ragged") -> Result:
    """Like `samples.made()` a little later, with one engine at `factor` of its speed."""
    return samples.made(seed=100, speeds={engine: factor})


def test_a_slower_engine_is_shown_and_fails_only_if_asked_to(compare: Compare) -> None:
    same = compare(samples.made(), samples.made(), "--fail-over", "0%")
    assert (same.exit_code, same.errors) == (0, "")
    assert re.search(r"  1\.00x \[.*\]  no difference shown$", same.row("static", "uniform"))
    assert "4 of 4 rows compared\nnone slower by more than 0%" in same.output
    shown = compare(samples.made(), slower(0.8))
    assert shown.exit_code == 0
    assert re.search(r"0\.\d\dx \[0\.\d\d, 0\.\d\d\]  slower by \d\d\.\d%$", shown.row("ragged"))
    assert shown.row("static").endswith("no difference shown")
    assert "FAILED" not in shown.output
    failed = compare(samples.made(), slower(0.8), "--fail-over", "5%")
    assert failed.exit_code == 1
    assert "FAILED, slower by" in failed.row("ragged")
    assert failed.row("static").endswith("no difference shown")
    assert failed.lines[-1] == "FAILED: 2 slower by more than 5%"
    assert compare(samples.made(), slower(0.8), "--fail-over", "50%").exit_code == 0
    faster = compare(samples.made(), slower(1.5), "--fail-over", "0")
    assert "faster by" in faster.row("ragged")
    assert "FAILED" not in faster.row("ragged")


def test_a_row_that_has_become_invalid_fails_without_a_limit(compare: Compare) -> None:
    b = samples.made()
    b["comparisons"][1]["rows"][1] |= {
        "verdict": "INVALID",
        "reason": "r3 has 11 tokens,\n  but should have 12",
        "metrics": None,
        "rounds": [],
    }
    compared = compare(samples.made(), b)
    assert compared.exit_code == 1
    expected = "FAILED, INVALID in B: r3 has 11 tokens, but should have 12"
    assert compared.row("ragged").endswith(expected)
    assert compared.row("static").endswith("no difference shown")
    assert "3 of 4 rows compared\nFAILED: 1 VALID in A and not in B" in compared.output


def test_unlike_machines_and_versions_are_warned_of_and_commits_shown(compare: Compare) -> None:
    b = samples.made(is_complete=False)
    b["header"] = samples.header(cpu="Another CPU")
    b["header"]["device"] |= {"driver": "580.65", "threads": 4}
    b["header"]["made"]["machine"]["cores"] = 8
    b["header"]["made"]["versions"] |= {"torch": "2.14.0", "triton": "4.0"}
    b["header"]["made"]["commit"] = "fedcba987654 with uncommitted changes"
    compared = compare(samples.made(), b)
    assert compared.exit_code == 0
    assert compared.errors.splitlines() == [
        "warning: B is not complete: its run was stopped, or goes on",
        "warning: the machines differ: cpu is Some CPU at 2.0 GHz in A, Another CPU in B, "
        "cores is 2 in A, 8 in B, device name is Some CPU at 2.0 GHz in A, Another CPU in B, "
        "device driver is not set in A, 580.65 in B, threads is 1 in A, 4 in B",
        "warning: the versions differ: torch is 2.13.0 in A, 2.14.0 in B, "
        "triton is not set in A, 4.0 in B",
    ]
    assert "commit 0123456789ab" in compared.lines[1]
    assert "commit fedcba987654 with uncommitted changes" in compared.lines[3]


def test_what_is_not_valid_and_timed_in_both_is_named_and_not_compared(compare: Compare) -> None:
    a, b = samples.made(), slower(0.5, engine="static")
    a["comparisons"][0]["rows"][0]["rounds"][1]["process_s"] = 0.0
    unverified = {"verdict": "UNVERIFIED", "reason": "because of this"}
    b["comparisons"][1]["rows"][0] |= unverified
    assert compare(a, b).exit_code == 0
    compared = compare(a, b, "--fail-over", "20%")
    assert compared.exit_code == 1, "no gate may pass what was not measured"
    assert compared.row("static", "uniform").endswith("not compared, A has no process times of it")
    assert compared.row("static").endswith("FAILED, UNVERIFIED in B: because of this")
    assert "2 of 4 rows compared" in compared.output
    a["comparisons"][1]["rows"][0] |= {"verdict": "INVALID", "reason": "wrong"}
    assert compare(a, b).row("static").endswith("not compared, INVALID in A: wrong")
    for comparison in b["comparisons"]:
        comparison["rows"] = [row | unverified for row in comparison["rows"]]
    nothing = compare(samples.made(), b)
    assert nothing.exit_code == 2
    assert "no row is VALID in both A and B" in nothing.errors


def test_an_engine_that_dropped_out_passes_no_gate(compare: Compare) -> None:
    a, b = (samples.made(workloads=["bimodal"]) for _ in "ab")
    del b["comparisons"][0]["rows"][1]
    b["comparisons"][0]["ratios"] = []
    shown = compare(a, b)
    assert shown.exit_code == 0
    assert "\nOnly in A\n  bimodal, tiny float32, process time: ragged\n" in shown.output
    failed = compare(a, b, "--fail-over", "50")
    assert failed.exit_code == 1
    assert failed.lines[-1].endswith("ragged is in A, and B has its workload without it")


def of_another_workload() -> Result:
    result = samples.made()
    result["comparisons"][1]["workload"]["hash"] = "0" * 12
    return result


NOTHING = "nothing to compare: A has uniform, tiny float32, process time: static"


@pytest.mark.parametrize(
    ("b", "arguments", "words"),
    [
        (of_another_workload(), "", "'bimodal' of tiny float32 is not the same: its hash is "),
        (samples.made(engines=["fast"]), "", NOTHING),
        (samples.made(), "--fail-over=nan", "'nan' must be a percentage"),
        (None, "", "there is no result file '"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_sentence(
    compare: Compare, b: Result | None, arguments: str, words: str
) -> None:
    compared = compare(samples.made(), b, *arguments.split())
    assert (compared.exit_code, compared.lines) == (2, [])
    assert compared.errors.startswith("error: ")
    assert compared.errors.count("\n") == 1
    assert words in compared.errors


def test_the_limit_holds_for_the_figure_even_where_its_interval_shows_no_difference(
    compare: Compare,
) -> None:
    """Three laps of a restless machine: 10 % slower, give or take 60 %."""
    a, b = (samples.made(workloads=["bimodal"], engines=["ragged"]) for _ in "ab")
    for result, times in ((a, (1.0, 1.1, 0.9)), (b, (1.1, 1.5, 0.8))):
        rounds = [{"wall_s": each, "process_s": each} for each in times]
        result["comparisons"][0]["rows"][0]["rounds"] = rounds
    compared = compare(a, b, "--fail-over", "5")
    assert compared.exit_code == 1
    words = "FAILED, slower by 9.1%, though its interval does not exclude 1"
    assert compared.row("ragged").endswith(words)


def test_it_needs_no_torch_and_ends_quietly_when_its_reader_has_left(tmp_path: Path) -> None:
    paths = [str(samples.saved(tmp_path / f"{name}.json", samples.made())) for name in "ab"]
    program = (
        "import sys; from batchproof.__main__ import main; "
        "exit_code = main(sys.argv[1:]); assert 'torch' not in sys.modules; sys.exit(exit_code)"
    )
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end) as closed_pipe:
        command = [sys.executable, "-c", program, "compare", *paths]
        ran = subprocess.run(
            command, cwd=ROOT, stdout=closed_pipe, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ran.returncode, ran.stderr) == (141, "")
