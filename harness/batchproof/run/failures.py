"""The exceptions that a trial raises: each holds a complete failure."""

from __future__ import annotations

import traceback

from batchproof.errors import EngineHang
from batchproof.findings.failure import Failure
from batchproof.findings.failure_text import failure_text


class ConformanceFailure(AssertionError):
    """Raised if the engine broke a promise."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return failure_text(self.failure)


class HangFailure(EngineHang):
    """Raised if the engine does not end (promise P10)."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure.finding.facts["what"]))
        self.failure = failure

    def __str__(self) -> str:
        return failure_text(self.failure)


def last_frames(error: BaseException, count: int = 3) -> list[str]:
    """Returns the innermost `count` frames of the traceback, one line each."""
    frames = traceback.extract_tb(error.__traceback__)[-count:]
    return [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
