"""Which models a test runs on, for an engine that does not serve them all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RunSuite = Callable[..., Any]

SUITE = """
import pytest
from batchproof.api import Request
from batchproof.workload.workloads import Workload


@pytest.mark.one_model
@pytest.mark.promise(id="P1")
def test_once(trial):
    trial.check(Workload((Request("a", (1, 2), 2),)))
"""
LONG = SUITE.replace("one_model", "long_model").replace("test_once", "test_long")
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
    (tmp_path / "test_mini.py").write_text(SUITE)
    (tmp_path / "mine.py").write_text(CHOOSY.replace("REFUSED", repr(refused)))
    models = ["--model=gpt2-random", "--model=llama-random"]
    session = run_suite("-v", "--engine=mine.py:choosy", *models)
    assert f"test_once[{ran}]" in session.output
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
    assert f"test_long[mine.py:choosy-{ran}]" in session.output
    assert "1 passed" in session.output
