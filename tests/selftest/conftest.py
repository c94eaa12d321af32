"""Small suites of conformance tests, made by a test and run under the plugin."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from batchproof.campaign.shared_laboratory import SharedLaboratory
from batchproof.run.laboratory import Laboratory

ARGUMENTS = ["-ra", "-p", "batchproof.plugin", "-p", "no:cacheprovider", "--import-mode=importlib"]
DEFAULTS = ("--engine=static", "--model=gpt2-random", "--no-isolate")


@dataclass(frozen=True, slots=True)
class Session:
    exit_status: int
    output: str

    def cell(self, promise: str) -> str:
        """Of the first engine, in the table engine x promise."""
        table = self.output.partition("engine x promise")[2].splitlines()
        line = next(each for each in table if each.startswith(promise))
        return line.removeprefix(promise).strip()


RunSuite = Callable[..., Session]
LaboratoryFor = Callable[[float], SharedLaboratory]


@pytest.fixture(scope="session")
def laboratory_for(laboratory: Laboratory) -> LaboratoryFor:
    """`laboratory_for(time_limit_s)` is a laboratory on the CPU for engines that may damage a model.
    It has the models and right answers of this session, unless that is about something else."""
    usual = Laboratory(torch.device("cpu"), torch.float32, 1.0)
    is_usual = (laboratory.device, laboratory.dtype) == (usual.device, usual.dtype)
    is_usual = is_usual and laboratory.precision == usual.precision
    return partial(SharedLaboratory.beside, laboratory if is_usual else usual)


@pytest.fixture
def run_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSuite:
    """`run_suite(*arguments)` runs the tests in `tmp_path` in this process, on `static` and a small
    model unless others are named, and without workers, whose start takes seconds, unless they are
    asked for. Without `defaults`, no argument is added."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    outer_profile = settings.get_current_profile_name()

    def run(*arguments: str, defaults: Sequence[str] = DEFAULTS) -> Session:
        loaded = set(sys.modules)
        command = [*ARGUMENTS, *arguments]
        for default in defaults:
            option = default.partition("=")[0].replace("--no-", "--")
            if not any(each.startswith(option) for each in arguments):
                command.append(default)
        with io.StringIO() as output, redirect_stdout(output), redirect_stderr(output):
            try:
                exit_status = int(pytest.main(command))
            finally:
                settings.load_profile(outer_profile)
                for name in set(sys.modules) - loaded:
                    if name.startswith("test_"):
                        del sys.modules[name]
            return Session(exit_status, output.getvalue())

    return run
