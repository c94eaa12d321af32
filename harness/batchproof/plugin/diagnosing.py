"""Reports a failure with its most likely cause. The diagnosis runs after the verdict, which it never
changes.
"""

from __future__ import annotations

import pytest

from batchproof.diagnosis import diagnose
from batchproof.errors import EngineHang
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.failure import Failure
from batchproof.run.time_limit import contained
from batchproof.run.trial import Trial


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
