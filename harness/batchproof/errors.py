"""All exceptions, grouped by who can remedy the cause.

BatchproofError
├── UsageError            the user: a flag, a file, a path, an option
│   └── CaseError         the author of a case or a configuration; the message names file and line
├── OracleError           this project: it has no right answer to compare with
├── ConfigError           the caller that built an `EngineConfig` out of range
└── UnsupportedModelError the author of the engine, which cannot serve this model

AssertionError            the author of the engine
├── BrokenPromise         a check found a promise broken (see `batchproof.checks.broken`)
└── ConformanceFailure    the same, with all that is known of the run (see `batchproof.run.failures`)

BaseException             the author of the engine
└── EngineHang            a call exceeded its time limit; no `except Exception` may swallow that
    └── HangFailure       the same, with all that is known of the run (see `batchproof.run.failures`)

KeyboardInterrupt
└── Interrupt             nobody: the user, or the machine, wants the run to end
"""

import signal
from collections.abc import Sequence
from typing import ClassVar


class BatchproofError(Exception):
    """Base class of the exceptions that are no verdict on an engine."""


class UsageError(BatchproofError):
    """Raised for wrong input by the user; the message is one sentence naming value, rule and
    choices."""


class CaseError(UsageError):
    """Raised for a case, a workload or a configuration that breaks its schema; the message starts with
    `file:line`."""


class OracleError(BatchproofError):
    """Raised if there is no right answer: a failure of the harness, never of the engine under test."""


class ConfigError(BatchproofError, ValueError):
    """Raised for a value out of range in an `EngineConfig`."""


class UnsupportedModelError(BatchproofError):
    """Raised by a factory for a model that its engine would answer wrongly."""


class EngineMissingError(UnsupportedModelError):
    """Raised by a factory for every model where the engine is not installed."""


class EngineHang(BaseException):
    """Raised if an engine call exceeds its time limit or its step bound; `evidence` holds lines
    about it.

    It is no `Exception`: an engine's own `except Exception` must not swallow it, and Hypothesis must
    not spend the limit again on each attempt to shrink.
    """

    def __init__(self, what: str, evidence: Sequence[str] = ()) -> None:
        super().__init__(what, tuple(evidence))
        self.what = what
        self.evidence = tuple(evidence)

    def __str__(self) -> str:
        return "\n".join([self.what, *self.evidence])


class Interrupt(KeyboardInterrupt):
    """Raised by Ctrl-C and SIGTERM (see `batchproof.cli.interrupts`). Any other `KeyboardInterrupt`
    comes from an engine."""

    sent: ClassVar["Interrupt | None"] = None  # native code may have made another error of it

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum  # as a shell reports it
