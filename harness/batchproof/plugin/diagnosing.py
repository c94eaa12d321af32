"""A failure is told with its most likely cause. Runs after the verdict, which it never changes."""

from __future__ import annotations

from typing import Any

import pytest

from batchproof.causes import Cause
from batchproof.checks.verdict import ConformanceFailure
from batchproof.diagnosis import Diagnosis, diagnose
from batchproof.errors import EngineHang, UsageError
from batchproof.run.trial import Trial

DEFAULT_SECONDS = 20.0


def add_option(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--diagnose-for",
        type=float,
        default=DEFAULT_SECONDS,
        metavar="S",
        help="seconds to look for the cause of a failure; 0: not at all (default: %(default)g)",
    )


def check_option(config: pytest.Config) -> None:
    """Raises `UsageError`."""
    seconds = config.getoption("--diagnose-for")
    if not 0 <= seconds <= 3600:
        raise UsageError(f"--diagnose-for is {seconds:g}, but must be 0 to 3600 seconds")


def told_with_cause(
    item: pytest.Item, error: ConformanceFailure | EngineHang, record: dict[str, Any]
) -> None:
    """Adds the cause to the failure's text, and to the test's record."""
    trial = getattr(item, "funcargs", {}).get("trial")
    seconds = item.config.getoption("--diagnose-for")
    if not isinstance(trial, Trial) or not seconds:
        return
    try:
        found = diagnose(trial, error, seconds)
    except Exception as slip:  # whatever it is, the verdict stands
        found = Diagnosis(Cause.UNKNOWN, f"the diagnosis itself failed: {type(slip).__name__}: {slip}")
    record["cause"] = found.cause.name
    error.diagnosis = found.lines()
