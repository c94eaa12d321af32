"""Which models a test runs on, for an engine that does not serve them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.selftest.conftest import HEAD, RIGHT, RunSuite

ONE = f"{HEAD}\n@pytest.mark.one_model{RIGHT}"
LONG = f"{HEAD}\n@pytest.mark.long_model{RIGHT}"
CHOOSY = """
from batchproof.errors import UnsupportedModelError
from batchproof_engines.static import static

def choosy(model, config):
    if REFUSED in type(model).__name__:
        raise UnsupportedModelError("not that one")
    return static(model, config)
"""


@pytest.mark.parametrize(
    ("refused", "ran", "outcome"),
    [
        ("GPT2", "mine.py:choosy-llama-random", "1 passed"),
        ("Nobody", "mine.py:choosy-gpt2-random", "1 passed"),
        ("", "mine.py:choosy-gpt2-random", "1 skipped"),
    ],
)
def test_one_model_is_the_first_that_the_engine_serves(
    refused: str, ran: str, outcome: str, run_suite: RunSuite, tmp_path: Path
) -> None:
    (tmp_path / "test_mini.py").write_text(ONE)
    (tmp_path / "mine.py").write_text(CHOOSY.replace("REFUSED", repr(refused)))
    models = ["--model=gpt2-random", "--model=llama-random"]
    session = run_suite("-v", "--engine=mine.py:choosy", *models)
    assert f"test_right[{ran}]" in session.output
    assert outcome in session.output


@pytest.mark.parametrize(
    ("refused", "models", "ran"),
    [
        ("Nobody", ["all"], "gpt2-long"),
        ("GPT2", ["all"], "llama-hash"),
        ("Nobody", ["gpt2-random"], "gpt2-random"),
        ("Nobody", ["gpt2-random", "gpt2-long"], "gpt2-long"),
    ],
)
def test_a_long_model_is_taken_unless_only_others_are_named(
    refused: str, models: list[str], ran: str, run_suite: RunSuite, tmp_path: Path
) -> None:
    (tmp_path / "test_mini.py").write_text(LONG)
    (tmp_path / "mine.py").write_text(CHOOSY.replace("REFUSED", repr(refused)))
    session = run_suite("-v", "--engine=mine.py:choosy", *(f"--model={name}" for name in models))
    assert f"test_right[mine.py:choosy-{ran}]" in session.output
    assert "1 passed" in session.output
