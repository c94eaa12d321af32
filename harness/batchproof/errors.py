"""What can go wrong, by who has to act.

BatchproofError
├── UsageError            the person at the keyboard: a flag, a file, a path, an option
│   └── CaseError         a YAML case, with file and line
├── OracleError           this project: it has no right answer to hold an engine against
├── ConfigError           whoever made an EngineConfig out of range
└── UnsupportedModelError an engine that cannot serve this model says so when it is built

AssertionError
├── BrokenPromise         a check found a promise broken (see `batchproof.checks.broken`)
└── ConformanceFailure    the same, with all that is known of the run (see `batchproof.run.failures`)

BaseException
└── EngineHang            the engine ran into the time limit; nothing may swallow that
    └── HangFailure       the same, with all that is known of the run (see `batchproof.run.failures`)
"""

from __future__ import annotations

from collections.abc import Sequence


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
    """An engine call that outlasted its time limit or its step bound; `evidence`: lines about it.

    Not an `Exception`: an engine's own `except Exception` must not swallow it, and Hypothesis must
    not spend the limit again on each shrink attempt.
    """

    def __init__(self, what: str, evidence: Sequence[str] = ()) -> None:
        super().__init__(what, tuple(evidence))
        self.what = what
        self.evidence = tuple(evidence)

    def __str__(self) -> str:
        return "\n".join([self.what, *self.evidence])
