"""Reports a failure with its most likely cause. The diagnosis runs after the verdict, which it never
changes.
"""

from __future__ import annotations

import pytest

from batchproof.diagnosis import diagnose
from batchproof.errors import EngineHang, UsageError
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.failure import Failure
from batchproof.plugin.numbers import seconds
from batchproof.run.time_limit import contained
from batchproof.run.trial import Trial

DEFAULT_SECONDS = 20.0


def add_option(group: pytest.OptionGroup) -> None:
    """Adds `--diagnose-for`, in seconds, to pytest's parser."""
    group.addoption(
        "--diagnose-for",
        type=seconds("--diagnose-for"),
        default=DEFAULT_SECONDS,
        metavar="S",
        help="seconds to look for the cause of a failure; 0: not at all (default: %(default)g)",
    )


def check_option(config: pytest.Config) -> None:
    """Raises `UsageError` if `--diagnose-for` is out of range."""
    limit_s = config.getoption("--diagnose-for")
    if not 0 <= limit_s <= 3600:
        raise UsageError(f"--diagnose-for is {limit_s:g}, but must be 0 to 3600 seconds")


def diagnosis_of(config: pytest.Config, trial: Trial, failure: Failure) -> Diagnosis | None:
    """Returns the most likely cause, or None if the run does not ask for it."""
    limit_s = config.getoption("--diagnose-for")
    if not limit_s or trial.spec.name in trial.lab.lost:  # an engine that nobody can speak to
        return None
    try:
        with contained():
            return diagnose(trial, failure, limit_s)
    except (Exception, EngineHang) as slip:  # whatever it is, the verdict stands
        return Diagnosis(Cause.UNKNOWN, f"the diagnosis itself failed: {type(slip).__name__}: {slip}")
