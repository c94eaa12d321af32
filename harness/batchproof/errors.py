"""What can go wrong, by who has to act.

BatchproofError
├── UsageError            the person at the keyboard: a flag, a file, a path, an option
│   └── CaseError         a YAML case, with file and line
├── OracleError           this project: it has no right answer to hold an engine against
├── ConfigError           whoever made an EngineConfig out of range
└── UnsupportedModelError an engine that cannot serve this model says so when it is built

AssertionError
└── ConformanceFailure    the engine broke a promise (see `batchproof.checks.verdict`)

BaseException
└── EngineHang            the engine ran into the time limit; nothing may swallow that
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchproof.checks.verdict import Scene


class BatchproofError(Exception):
    """Anything this project raises about itself."""


class UsageError(BatchproofError):
    """Wrong input of a person; the message is one sentence naming value, rule and choices."""


class CaseError(UsageError):
    """A case file that breaks the schema; the message starts with `file:line`."""


class OracleError(BatchproofError):
    """There is no right answer: a failure of the harness, never of the engine under test."""


class ConfigError(BatchproofError, ValueError):
    """A value out of range in an `EngineConfig`."""


class UnsupportedModelError(BatchproofError):
    """Raised by a factory for a model that its engine would answer wrongly."""


class EngineHang(BaseException):
    """An engine call that outlasted its time limit or its step bound.

    Not an `Exception`: an engine's own `except Exception` must not swallow it, and Hypothesis must
    not spend the limit again on each shrink attempt.
    """

    scene: Scene | None = None  # filled in by the trial
    diagnosis: Sequence[str] = ()  # the most likely cause, in words

    def __str__(self) -> str:
        first, *rest = super().__str__().splitlines()
        return "\n".join([first, *self.diagnosis, *rest])

    def add(self, lines: Sequence[str]) -> None:
        """Tell more about it, below what is told already."""
        self.args = ("\n".join([super().__str__(), *lines]),)
