"""Fixtures that start the stand-in program as an engine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from batchproof.api import EngineConfig
from batchproof.models.catalogue import load_model
from batchproof.run.registry import resolve_engine
from tests.selftest.adapters.stand_in_program import PROGRAM, process_of

Command = Callable[..., str]
Build = Callable[..., Any]


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return load_model("gpt2-random", torch.device("cpu"), torch.float32).model


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Returns a function for the stand-in's command line with a change; None keeps the last one."""

    def command(change: str | None = "") -> str:
        path = tmp_path / "engine.py"
        if change is not None:
            path.write_text(f"{PROGRAM}\n{change}\nmain()\n")
        return shlex.join([sys.executable, "-S", "-E", str(path)])

    return command


@pytest.fixture
def build(command: Command, model: PreTrainedModel) -> Iterator[Build]:
    made = []

    def build(change: str | None = "", **config: Any) -> Any:
        engine = resolve_engine(f"cmd:{command(change)}").factory(model, EngineConfig(**config))
        made.append(process_of(engine))
        return engine

    yield build
    for process in made:
        process.kill("was ended by the test")
