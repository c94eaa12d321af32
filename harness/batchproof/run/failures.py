"""What a trial raises: a failure with all that is known of it, complete when it is made."""

from __future__ import annotations

import traceback

from batchproof.errors import EngineHang
from batchproof.findings.failure import Failure
from batchproof.findings.failure_text import failure_text


class ConformanceFailure(AssertionError):
    """The engine broke a promise."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return failure_text(self.failure)


class HangFailure(EngineHang):
    """The engine came to no end (promise P10)."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure.finding.facts["what"]))
        self.failure = failure

    def __str__(self) -> str:
        return failure_text(self.failure)


def last_frames(error: BaseException, count: int = 3) -> list[str]:
    """The innermost frames of its traceback, a line each."""
    frames = traceback.extract_tb(error.__traceback__)[-count:]
    return [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
