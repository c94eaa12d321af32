"""Which models a test runs on, for an engine that does not serve them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.selftest.conftest import HEAD, RIGHT, RunSuite

SUITE = (
    f"{HEAD}\n@pytest.mark.one_model{RIGHT}\n@pytest.mark.long_model{RIGHT.replace('right', 'long')}"
)
CHOOSY = """
from batchproof.errors import UnsupportedModelError
from batchproof_engines.static import static

def choosy(model, config):
    if REFUSED in type(model).__name__:
        raise UnsupportedModelError("not that one")
    return static(model, config)
"""


@pytest.mark.parametrize(
    ("refused", "models", "one", "long"),
    [
        ("", "gpt2-random llama-random", "gpt2-random", "gpt2-random"),  # it refuses all
        ("Nobody", "gpt2-random gpt2-long", "gpt2-random", "gpt2-long"),
        ("GPT2", "all", "llama-hash", "llama-hash"),
    ],
)
def test_a_test_for_one_model_gets_the_first_that_the_engine_serves(
    refused: str, models: str, one: str, long: str, run_suite: RunSuite, tmp_path: Path
) -> None:
    """A long one comes first, unless only others are named."""
    (tmp_path / "test_mini.py").write_text(SUITE)
    (tmp_path / "mine.py").write_text(CHOOSY.replace("REFUSED", repr(refused)))
    asked = [f"--model={name}" for name in models.split()]
    session = run_suite("--collect-only", "--engine=mine.py:choosy", *asked)
    chosen = re.findall(r"test_(\w+)\[mine.py:choosy-(.*?)\]", session.output)
    assert dict(chosen) == {"right": one, "long": long}, session.output
