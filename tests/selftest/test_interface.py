"""pytest as the interface: wrong usage is one sentence, and nothing passes by accident."""

import re
from pathlib import Path

import pytest

from batchproof_lab import suite_run
from tests.selftest.conftest import CHOOSY, HEAD, RIGHT, RunSuite

# Neither shows an answer that could be compared.
ENDLESS = """
from batchproof_engines.ragged.engine import RaggedEngine
class Engine(RaggedEngine):
    has_unfinished = True
    def generate(self, requests):
        raise NotImplementedError
"""
DUMB = """
from dataclasses import replace
from batchproof_engines.static import StaticEngine
class Engine(StaticEngine):
    def generate(self, requests):
        return [replace(c, logits=None) for c in super().generate(requests)]
"""
BROKEN = """
from enum import Enum
from batchproof_engines.static import StaticEngine
def factory(model, config): raise OSError("gone")
def verbose(model, config): raise ValueError(model)
class Grade(Enum):
    A = "a"
class Invariant(StaticEngine):
    capabilities = StaticEngine.capabilities | {"invariance"}
    invariance = {"bach": "B"}
"""


@pytest.mark.parametrize(
    ("engine", "test", "promise", "words"),
    [
        (ENDLESS, "test_stepping_ends_within_the_bound", "P10", "still has unfinished requests"),
        (DUMB, "two_fresh_engines", "P16", "has the capability logits, but those of request"),
    ],
    ids=["endless", "dumb"],
)
def test_an_engine_that_shows_nothing_has_passed_nothing(
    tmp_path: Path, engine: str, test: str, promise: str, words: str
) -> None:
    (tmp_path / f"{promise}.py").write_text(engine)
    arguments = ["-k", test, "--model=gpt2-random", "--diagnose-for=0"]
    findings = suite_run.run_suite(f"{tmp_path / promise}.py:Engine", arguments)
    (catch,) = findings.catches
    assert catch.broken == promise
    assert words in catch.report
    assert ": no workload was compared to its end\n" in findings.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--engine=broken.py:factory", "its factory raised OSError: gone"),
        ("--engine=broken.py:Grade", "'Grade' is an enumeration, but must be a factory(model, config)"),
        ("--engine=broken.py:verbose", "its factory raised ValueError: GPT2LMHeadModel( "),
        ("--engine=broken.py:Invariant -k smoke", "invariance has the axis 'bach'"),
        ("--model=/nonesuch", "--model '/nonesuch' is neither an embedded model (gpt2-hash"),
        ("--device=warp9", "--device 'warp9' is unknown; choose one of auto, cpu, cuda"),
        ("--diagnose-for=soon", "argument --diagnose-for: invalid float value: 'soon'"),
        *(
            (f"{option}=/proc/x.json --engine=static", f"{option} '/proc/x.json' cannot be written: ")
            for option in ("--table", "--verdict", "--journal", "--artifacts", "--repro")
        ),
        ("--table=t.json --benchmark-only", "--table 't.json' has nothing to write with"),
        ("--benchmark-only -n 2", "-n cannot be had: one process takes the times of a benchmark"),
        ("--requirement=test_x[a]", "--requirement 'test_x[a]' is none of this run"),
    ],
)
def test_wrong_usage_ends_at_once_in_one_sentence(
    run_suite: RunSuite, arguments: str, words: str
) -> None:
    run_suite(*arguments.split(), broken=BROKEN).require_usage_error(words)
    assert not list(Path().glob("*.json"))


SUITE = (
    f"{HEAD}\n@pytest.mark.one_model{RIGHT}\n@pytest.mark.long_model{RIGHT.replace('right', 'long')}"
)


@pytest.mark.parametrize(
    ("refused", "models", "one", "long"),
    [
        ("", "gpt2-random llama-random", "gpt2-random", "gpt2-random"),  # it refuses all
        ("Nobody", "gpt2-random gpt2-long", "gpt2-random", "gpt2-long"),
        ("GPT2", "all", "llama-hash", "llama-hash"),
        ("GPT2", "all --serves=gpt2-long", "llama-hash", "gpt2-long"),  # which fails
    ],
)
def test_a_test_for_one_model_gets_the_first_that_the_engine_serves(
    refused: str, models: str, one: str, long: str, run_suite: RunSuite
) -> None:
    """A long one comes first, unless only others are named."""
    asked = [each if each[0] == "-" else f"--model={each}" for each in models.split()]
    modules = {"test_mini": SUITE, "mine": CHOOSY.replace("REFUSED", repr(refused))}
    session = run_suite("--collect-only", "--engine=mine.py:choosy", *asked, **modules)
    chosen = re.findall(r"test_(\w+)\[mine.py:choosy-(.*?)\]", session.output)
    assert dict(chosen) == {"right": one, "long": long}, session.output
