"""What can go wrong between a server and us."""

from __future__ import annotations

from batchproof.api import Completion

NUM_SHOWN = 200  # characters of an answer that makes no sense


class EngineFailed(RuntimeError):
    """The server gave no answer, or one that cannot be read; `completions` holds those that others of
    the same call got before."""

    completions: tuple[Completion, ...] = ()
    has_answered = False  # with a head of HTTP, whatever came then


class Refused(Exception):
    """The server will not serve this request, and says why."""


class Cut(Exception):
    """We have hung up."""


def shown(text: str) -> str:
    """The beginning of something strange."""
    return repr(text[:NUM_SHOWN]) + (" ..." if len(text) > NUM_SHOWN else "") if text else "nothing"
