"""Attributes a problem during a measurement to one engine, so that the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from batchproof.checks.broken import BrokenPromise
from batchproof.errors import EngineHang, OracleError
from batchproof.findings.finding_text import first_line
from batchproof.run.failures import ConformanceFailure


class NoRightAnswer(OracleError):
    """Raised if there is no right answer while answers are judged: no fault of an engine."""


@contextmanager
def blaming(accuse: Callable[[str], None]) -> Iterator[None]:
    """Passes what the engine raises inside the block to `accuse`, as text.

    `EngineHang` is raised again, because the engine may be slow and right; `KeyboardInterrupt` and
    `NoRightAnswer` are raised again as well.
    """
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
    """Raises `NoRightAnswer` for an `OracleError` inside the block, so that no engine is blamed for
    it."""
    try:
        yield
    except OracleError as error:
        raise NoRightAnswer(str(error)) from error
