"""The suite off the CPU, but without a GPU: on the straw device, in a process of its own."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from batchproof.places import ROOT
from batchproof_paged.native_build import compiler
from tests.selftest.conftest import Session, session_of

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
IMPORTED = ["torch", "transformers.modeling_utils"]  # takes longer than most of what is asked here

pytestmark = pytest.mark.skipif(not compiler(), reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """One process, which has the device for good. It is forked from one that has imported torch, and
    has used it for nothing: a fork of this one might hang."""
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        yield pool


def session(*arguments: str) -> Session:
    # No worker of xdist, even where the session around it is: benchmarks refuse to run in one.
    os.environ.pop("PYTEST_XDIST_WORKER", None)
    os.chdir(ROOT)
    plugins = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.selftest.device.straw")
    # Plain: what an earlier session imported cannot be rewritten.
    command = ["-q", "--assert=plain", *plugins, "--device=straw", "tests/conformance/test_cases.py"]
    return session_of([*command, *arguments])


def test_honest_engines_keep_their_promises_there(elsewhere: ProcessPoolExecutor) -> None:
    engines = [f"--engine={name}" for name in ENGINES]
    chosen = ("-k", " or ".join(CASES), *engines, "--model=mistral-window")
    run = elsewhere.submit(session, *chosen).result()
    assert run.exit_status == 0, run.output
    *_, num_passed = re.findall(r"(\d+) passed", run.output)
    assert int(num_passed) >= 2 * len(CASES), run.output


def test_a_forgotten_device_is_found(elsewhere: ProcessPoolExecutor) -> None:
    engine = f"--engine={HERE / 'forgetful.py'}:Forgetful"
    run = elsewhere.submit(session, "-k", "long-row-first", engine, "--model=llama-hash").result()
    assert run.exit_status == pytest.ExitCode.TESTS_FAILED, run.output
    assert run.output.splitlines()[-1].startswith("1 failed"), run.output
    assert "Expected all tensors to be on the same device" in run.output
