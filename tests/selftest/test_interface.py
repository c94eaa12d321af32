"""pytest as the interface: what a person sees, and that nothing passes by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchproof.campaign.suite_run import SuiteOutcome, run_suite

HEAD = """
import time
from dataclasses import replace
from batchproof.api import Capability
from batchproof_engines.static import StaticEngine
from batchproof_engines.ragged.engine import RaggedEngine
"""

LIARS = {
    "wrong": """
class Engine(StaticEngine):
    def generate(self, requests):
        done = super().generate(requests)
        return [replace(c, token_ids=(*c.token_ids[:-1], 255 - c.token_ids[-1])) for c in done]
""",
    "raising": """
class Engine(StaticEngine):
    capabilities = frozenset()
    def generate(self, requests):
        raise RuntimeError("out of cheese")
""",
    "hanging": """
class Engine(StaticEngine):
    capabilities = frozenset()
    def generate(self, requests):
        while True:
            time.sleep(0.01)
""",
    "endless": """
class Engine(RaggedEngine):
    has_unfinished = True
    def generate(self, requests):
        raise NotImplementedError
""",
    "none": """
class Engine(StaticEngine):
    def generate(self, requests):
        return None
""",
    "floating": """
class Engine(StaticEngine):
    def generate(self, requests):
        done = super().generate(requests)
        return [replace(c, token_ids=tuple(map(float, c.token_ids))) for c in done]
""",
    "wordy": """
class Engine(StaticEngine):
    def generate(self, requests):
        return [replace(c, finish_reason="length") for c in super().generate(requests)]
""",
    "quitting": """
class Engine(StaticEngine):
    capabilities = frozenset()
    def generate(self, requests):
        raise SystemExit(3)
""",
    "dumb": """
class Engine(StaticEngine):
    def generate(self, requests):
        return [replace(c, logits=None) for c in super().generate(requests)]
""",
    "warning": """
import warnings
class Engine(StaticEngine):
    def generate(self, requests):
        warnings.warn("this engine is old")
        return super().generate(requests)
""",
}


@pytest.fixture
def liar(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / f"{request.param}.py"
    path.write_text(HEAD + LIARS[request.param])
    return f"{path}:Engine"


def hunt_smoke(engine: str, *arguments: str) -> SuiteOutcome:
    return run_suite(engine, ["-k", "smoke", "--model=gpt2-random", *arguments])


@pytest.mark.parametrize("liar", ["wrong"], indirect=True)
def test_a_failure_tells_promise_engine_model_step_and_workload(liar: str) -> None:
    findings = hunt_smoke(liar)
    assert findings.exit_status == pytest.ExitCode.TESTS_FAILED
    (catch,) = findings.catches
    assert catch.broken == "P1"
    for words in (
        "P1 parity is broken: request 'a' step 3: got token",
        "margin of the right token",
        f"engine: {liar}    model: gpt2-random (float32, cpu)",
        "- name: found-by-a-test",
        "again: pytest '",
    ):
        assert words in catch.report, catch.report
    assert "FAIL 1" in findings.output


HANGS, NEVER_DRY = ("--engine-time-limit=0.3",), ("-k", "test_stepping_ends_within_the_bound")


@pytest.mark.parametrize(
    ("liar", "arguments", "promise", "words"),
    [
        ("raising", (), "P1", "the engine raised RuntimeError: out of cheese"),
        ("quitting", (), "P1", "the engine raised SystemExit: 3"),
        ("hanging", HANGS, "P10", "generate did not return within 0.3 s"),
        ("endless", NEVER_DRY, "P10", "still has unfinished requests"),
        ("none", (), "P4", "generate returned a NoneType"),
        ("floating", (), "P4", "has a token of type float ("),
        ("wordy", (), "P4", "has finish_reason 'length', but should be a batchproof.api.FinishReason"),
        ("dumb", ("-k", "two_fresh_engines"), "P16", "has the capability logits, but those of request"),
    ],
    indirect=["liar"],
)
def test_what_an_engine_does_is_told_as_that(
    liar: str, arguments: tuple[str, ...], promise: str, words: str
) -> None:
    findings = hunt_smoke(liar, *arguments)
    (catch,) = findings.catches
    assert catch.broken == promise
    assert words in catch.report
    assert ": no workload was compared to its end\n" in findings.output


@pytest.mark.parametrize("liar", ["warning"], indirect=True)
def test_an_engines_own_warning_is_no_failure(liar: str) -> None:
    assert hunt_smoke(liar).exit_status == pytest.ExitCode.OK


def test_the_summary_shows_engines_against_promises() -> None:
    findings = hunt_smoke("static")
    assert findings.exit_status == pytest.ExitCode.OK
    assert "P1 parity" in findings.output
    assert "static: 1 workload, 3 answers and 12 tokens compared, 0 near-ties" in findings.output
    assert "batchproof: device cpu, dtype float32" in findings.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine=nonesuch"], "--engine 'nonesuch' is no engine: built in are reference"),
        (["--engine=static", "--engine=static"], "names the same engine twice"),
        (["--model=/nonesuch"], "--model '/nonesuch' is neither an embedded model"),
        (["--device=warp9"], "--device 'warp9' is unknown; choose one of auto"),
        (["--dtype=float8"], "--dtype 'float8' is unknown; choose one of float32"),
        (["--model=gpt2-rnd"], "no such folder, and a name of the hub reads owner/name"),
        (["--engine-time-limit=0"], "--engine-time-limit is 0, but must be above 0"),
        (["--diagnose-for=soon"], "--diagnose-for is 'soon', but must be a number of seconds"),
    ],
)
def test_wrong_usage_ends_at_once_in_one_sentence(arguments: list[str], words: str) -> None:
    engine = "static" if not arguments[0].startswith("--engine=") else "reference"
    findings = run_suite(engine, arguments)
    assert findings.exit_status == pytest.ExitCode.USAGE_ERROR
    assert words in findings.output
    assert "Traceback" not in findings.output
