"""pytest as the interface: what a person sees, and that nothing passes by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchproof_lab import suite_run
from tests.selftest.conftest import RunSuite

LIARS = {
    "wrong": """
from dataclasses import replace
from batchproof_engines.static import StaticEngine
import warnings
class Engine(StaticEngine):
    def generate(self, requests):
        warnings.warn("this engine is old")
        done = super().generate(requests)
        return [replace(c, token_ids=(*c.token_ids[:-1], 255 - c.token_ids[-1])) for c in done]
""",
    "endless": """
from batchproof_engines.ragged.engine import RaggedEngine
class Engine(RaggedEngine):
    has_unfinished = True
    def generate(self, requests):
        raise NotImplementedError
""",
    "dumb": """
from dataclasses import replace
from batchproof_engines.static import StaticEngine
class Engine(StaticEngine):
    def generate(self, requests):
        return [replace(c, logits=None) for c in super().generate(requests)]
""",
}


@pytest.fixture
def liar(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / f"{request.param}.py"
    path.write_text(LIARS[request.param])
    return f"{path}:Engine"


@pytest.mark.parametrize("liar", ["wrong"], indirect=True)
def test_a_failure_tells_promise_engine_model_step_and_workload(liar: str) -> None:
    findings = suite_run.run_suite(liar, ["-k", "smoke", "--model=gpt2-random"])
    assert findings.exit_status == pytest.ExitCode.TESTS_FAILED
    (catch,) = findings.catches
    assert catch.broken == "P1", "its own warning is no failure"
    for words in (
        "P1 parity is broken: request 'a' step 3: got token",
        "margin of the right token",
        f"engine: {liar}    model: gpt2-random (float32, cpu)",
        "- name: found-by-a-test",
        "again: pytest '",
    ):
        assert words in catch.report, catch.report
    assert "FAIL 1" in findings.output
    assert "batchproof: device cpu, dtype float32" in findings.output


@pytest.mark.parametrize(
    ("liar", "test", "promise", "words"),
    [
        ("endless", "test_stepping_ends_within_the_bound", "P10", "still has unfinished requests"),
        ("dumb", "two_fresh_engines", "P16", "has the capability logits, but those of request"),
    ],
    indirect=["liar"],
)
def test_what_an_engine_does_is_told_as_that(liar: str, test: str, promise: str, words: str) -> None:
    findings = suite_run.run_suite(liar, ["-k", test, "--model=gpt2-random", "--diagnose-for=0"])
    (catch,) = findings.catches
    assert catch.broken == promise
    assert words in catch.report
    assert ": no workload was compared to its end\n" in findings.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--engine=nonesuch", "--engine 'nonesuch' is no engine: built in are reference"),
        ("--engine=broken.py:factory", "its factory raised OSError: gone"),
        ("--model=/nonesuch", "--model '/nonesuch' is neither an embedded model (gpt2-hash"),
        ("--device=warp9", "--device 'warp9' is unknown; choose one of auto, cpu, cuda"),
        ("--diagnose-for=soon", "--diagnose-for is 'soon', but must be a number of seconds"),
        ("--xfails=nonesuch", "--xfails 'nonesuch' is no file"),
        ("--artifacts=broken.py/x", "--artifacts 'broken.py/x' can be no folder: Not a directory"),
        ("--table=.", "--table '.' must name a file that ends in .json"),
        ("--table=t.json --benchmark-only", "--table 't.json' has nothing to write with"),
    ],
)
def test_wrong_usage_ends_at_once_in_one_sentence(
    run_suite: RunSuite, tmp_path: Path, arguments: str, words: str
) -> None:
    (tmp_path / "broken.py").write_text("def factory(model, config): raise OSError('gone')\n")
    run_suite(*arguments.split()).require_usage_error(words)
    assert not list(tmp_path.glob("*.json"))
