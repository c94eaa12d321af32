"""The suite off the CPU, but without a GPU: on the straw device, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from batchproof.places import ROOT
from tests.selftest.device.native import compiler

HERE = Path(__file__).parent
ENGINES = ("paged?backend=blocks&graphs=true&overlap=true", "ragged", "static", "reference")
# Packed and padded rows, chunks, shared and evicted blocks, aborts: all that engines make tensors for.
CASES = (
    "long-row-first",
    "eos-at-different-steps",
    "segments-of-one-packed-row",
    "many-chunks-count-on",
    "prefix-comes-back-after-other-content",
    "preempted-in-the-middle-of-chunks",
    "abort-while-decoding",
    "prompts-around-the-window",
)

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")


def run_on_straw(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a separate pytest session: the device cannot be removed from a process."""
    plugins = ("-p", "no:cacheprovider", "-p", "tests.selftest.device.straw")
    # No worker of xdist, even where the session around it is: benchmarks refuse to run in one.
    environment = {key: value for key, value in os.environ.items() if key != "PYTEST_XDIST_WORKER"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "--device=straw", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def num(outcome: str, output: str) -> int:
    """Returns the number of tests with this outcome, from pytest's last line."""
    found = re.search(rf"(\d+) {outcome}", output.strip().splitlines()[-1])
    return int(found[1]) if found else 0


def test_the_device_keeps_its_laws_and_honest_engines_their_promises_there() -> None:
    laws = HERE / "laws_of_straw.py"
    engines = [f"--engine={name}" for name in ENGINES]
    models = ["--model=llama-hash", "--model=mistral-window"]  # a window is one more mask
    files = [str(laws), "tests/conformance/test_cases.py"]
    run = run_on_straw(
        *files, "-k", " or ".join([laws.stem, *CASES]), *engines, *models, "--hypothesis-profile=quick"
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert num("passed", run.stdout) >= 19 + 6 * len(CASES), run.stdout
    assert num("failed", run.stdout) == 0


def test_a_forgotten_device_is_found() -> None:
    engine = f"--engine={HERE / 'forgetful.py'}:forgetful"
    chosen = ["tests/conformance/test_cases.py", "-k", "long-row-first", engine, "--model=llama-hash"]
    run = run_on_straw(*chosen)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    assert num("failed", run.stdout) == 1
    assert "Expected all tensors to be on the same device" in run.stdout


def test_a_benchmark_has_valid_rows_there(tmp_path: Path) -> None:
    sizes = ["--num-requests=4", "--prompt-len=2:6", "--cap=2:4", "--slots=2", "--laps=2"]
    run = run_on_straw(
        "tests/benchmarks",
        "--benchmark-only",
        "--workload=bimodal",
        "--model=llama-hash",
        "--engine=static",
        *sizes,
        f"--results={tmp_path / 'result.json'}",
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"^static +VALID", run.stdout, re.MULTILINE), run.stdout
