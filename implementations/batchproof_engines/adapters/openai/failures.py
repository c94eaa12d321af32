"""The failures of a request to a server."""

from __future__ import annotations

from batchproof.api import Completion

NUM_SHOWN = 200  # characters of an invalid answer


class EngineFailed(RuntimeError):
    """The server gave no answer or an unreadable one; `completions` are earlier answers of the same
    call."""

    completions: tuple[Completion, ...] = ()
    has_answered = False  # at least with an HTTP status


class Refused(Exception):
    """The server refuses this request, and says why."""


class Cut(Exception):
    """The connection was cut on this side."""


def shown(text: str) -> str:
    """Returns the beginning of an unexpected text, quoted."""
    return repr(text[:NUM_SHOWN]) + (" ..." if len(text) > NUM_SHOWN else "") if text else "nothing"
