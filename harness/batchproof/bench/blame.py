"""What an engine does wrong while it is measured ends its own part, and nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from batchproof.checks.broken import BrokenPromise
from batchproof.errors import EngineHang, OracleError
from batchproof.findings.finding_text import first_line
from batchproof.run.failures import ConformanceFailure


class NoRightAnswer(OracleError):
    """Raised while answers were judged: no fault of an engine."""


@contextmanager
def blaming(accuse: Callable[[str], None]) -> Iterator[None]:
    """What the engine raises inside is told to `accuse`. An `EngineHang` is for the caller: it may be
    slow and right, and the conformance tests tell a hang."""
    try:
        yield
    except (KeyboardInterrupt, EngineHang, NoRightAnswer):
        raise
    except BrokenPromise as error:
        accuse(first_line(error.finding))
    except ConformanceFailure as error:
        accuse(first_line(error.failure.finding))
    except BaseException as error:  # asyncio's cancellation, for one, is no Exception
        accuse(f"the engine raised {type(error).__name__}: {error}")


@contextmanager
def judging() -> Iterator[None]:
    """Around the harness's own work: a right answer that is missing here is not the engine's doing."""
    try:
        yield
    except OracleError as error:
        raise NoRightAnswer(str(error)) from error
