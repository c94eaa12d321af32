"""The suite off the CPU, but without a GPU: on the straw device, in a process of its own."""

import io
import os
import re
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from batchproof.places import ROOT
from batchproof_paged.native_build import compiler
from tests.selftest.conftest import Session

HERE = Path(__file__).parent
ENGINES = ("paged?backend=blocks&graphs=true&overlap=true", "ragged", "static", "reference")
# Packed and padded rows, chunks, shared and evicted blocks, aborts: all that engines make tensors for.
CASES = (
    "long-row-first",
    "many-chunks-count-on",
    "prefix-comes-back-after-other-content",
    "preempted-in-the-middle-of-chunks",
    "abort-while-decoding",
)

pytestmark = pytest.mark.skipif(not compiler(), reason="there is no C++ compiler")


def run_on_straw(elsewhere: ProcessPoolExecutor, *arguments: str) -> Session:
    """A pytest session in a process that has the device: it has it for good."""
    return elsewhere.submit(session, arguments).result()


def session(arguments: tuple[str, ...]) -> Session:
    # No worker of xdist, even where the session around it is: benchmarks refuse to run in one.
    os.environ.pop("PYTEST_XDIST_WORKER", None)
    os.chdir(ROOT)
    plugins = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.selftest.device.straw")
    # Plain: what an earlier session imported cannot be rewritten.
    command = ["-q", "--assert=plain", *plugins, "--device=straw", *arguments]
    with io.StringIO() as output, redirect_stdout(output), redirect_stderr(output):
        status = int(pytest.main(command))
        return Session(status, output.getvalue())


def num(outcome: str, output: str) -> int:
    """Returns the number of tests with this outcome, from pytest's last line."""
    found = re.search(rf"(\d+) {outcome}", output.strip().splitlines()[-1])
    return int(found[1]) if found else 0


def test_the_device_keeps_its_laws_and_honest_engines_their_promises_there(
    elsewhere: ProcessPoolExecutor,
) -> None:
    laws = HERE / "laws_of_straw.py"
    chosen = [str(laws), "tests/conformance/test_cases.py", "-k", " or ".join([laws.stem, *CASES])]
    engines = [f"--engine={name}" for name in ENGINES]
    run = run_on_straw(elsewhere, *chosen, *engines, "--model=mistral-window")
    assert run.exit_status == 0, run.output
    assert num("passed", run.output) >= 6 + 2 * len(CASES), run.output
    assert num("failed", run.output) == 0


def test_a_forgotten_device_is_found(elsewhere: ProcessPoolExecutor) -> None:
    engine = f"--engine={HERE / 'forgetful.py'}:forgetful"
    chosen = ["tests/conformance/test_cases.py", "-k", "long-row-first", engine, "--model=llama-hash"]
    run = run_on_straw(elsewhere, *chosen)
    assert run.exit_status == pytest.ExitCode.TESTS_FAILED, run.output
    assert num("failed", run.output) == 1
    assert "Expected all tensors to be on the same device" in run.output
