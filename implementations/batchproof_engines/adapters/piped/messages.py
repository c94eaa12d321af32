"""Conversion between messages (`protocol.py`) and the types of the contract.

Answers are checked strictly: a wrong type is the program's mistake, and repairing it here would hide
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from batchproof.api import Completion, FinishReason, Request, TokenEvent, TokenLogprobs
from batchproof.records.decode import DecodeError, decode
from batchproof.workload.sampling_values import plain_values
from batchproof_engines.adapters.piped import protocol

Answer = Mapping[str, Any]  # a JSON object
T = TypeVar("T")
MOST_NOTE_CHARACTERS = 400


class WrongAnswer(ValueError):
    """A JSON object that does not answer the question; its text follows "answered ... with"."""


@dataclass(frozen=True)
class Hello:
    """How the program introduces itself. `notes` are its conventions and settings, in sentences for a
    report."""

    name: str
    version: str
    capabilities: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sampling_fields: tuple[str, ...] | None = None  # None: all that its capabilities are about


@dataclass(frozen=True)
class _Failed:
    error: str


@dataclass(frozen=True)
class _Built:
    unsupported: str | None = None


@dataclass(frozen=True)
class _Added:
    live: bool = False


@dataclass(frozen=True)
class _HasUnfinished:
    has_unfinished: bool


@dataclass(frozen=True)
class _Logprobs:
    logprob: float
    top: tuple[tuple[int, float], ...]
    rank: int | None = None


@dataclass(frozen=True)
class _Completion:
    """A completion of `generate` cannot be "aborted": only `abort` ends a request so."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: Literal["stop", "length", "error"]
    error: str | None = None
    logprobs: tuple[_Logprobs, ...] | None = None
    prompt_logprobs: tuple[_Logprobs | None, ...] | None = None


@dataclass(frozen=True)
class _Generated:
    completions: tuple[_Completion, ...]


@dataclass(frozen=True)
class _Event:
    request_id: str
    token_id: int | None
    finish_reason: protocol.FinishReason | None = None
    error: str | None = None
    logprobs: _Logprobs | None = None


@dataclass(frozen=True)
class _Stepped:
    events: tuple[_Event, ...]


def _read(kind: type[T], answer: Answer) -> T:
    try:
        return decode(kind, answer)
    except DecodeError as error:
        raise WrongAnswer(f"an object that does not fit: {error}") from None


def request_to_json(request: Request) -> protocol.Request:
    """Returns the message of a request; EOS ids are ascending, so that equal requests make equal
    lines."""
    message: protocol.Request = {
        "request_id": request.request_id,
        "prompt_token_ids": list(request.prompt_token_ids),
        "max_new_tokens": request.max_new_tokens,
        "eos_token_ids": sorted(request.eos_token_ids),
    }
    changed = {} if request.sampling is None else plain_values(request.sampling)
    if changed:
        message["sampling"] = cast(protocol.Sampling, changed)
    return message


def read_error(answer: Answer) -> str | None:
    """Returns what the engine raised, or None; this answer fits any question."""
    return _read(_Failed, answer).error if "error" in answer else None


def read_hello(answer: Answer) -> Hello:
    """Returns how the program introduces itself. Raises `WrongAnswer`, also for notes that could forge
    a section of the page that they become part of."""
    hello = _read(Hello, answer)
    for note in hello.notes:
        if not note.isprintable() or not 0 < len(note) <= MOST_NOTE_CHARACTERS:
            raise WrongAnswer(
                f"a note {note[:MOST_NOTE_CHARACTERS]!r}, but notes are one printable line of at most "
                f"{MOST_NOTE_CHARACTERS} characters"
            )
    return hello


def read_nothing(answer: Answer) -> None:
    """Checks that the answer is empty. Raises `WrongAnswer`."""
    if answer:
        raise WrongAnswer(f"an object that has the keys {', '.join(answer)}, but should be {{}}")


def read_build(answer: Answer) -> str | None:
    """Returns why the model cannot be served, or None if it can. Raises `WrongAnswer`."""
    return _read(_Built, answer).unsupported


def read_add(answer: Answer) -> bool:
    """Returns whether the id was live already. Raises `WrongAnswer`."""
    return _read(_Added, answer).live


def read_has_unfinished(answer: Answer) -> bool:
    """Returns whether the engine has unfinished requests. Raises `WrongAnswer`."""
    return _read(_HasUnfinished, answer).has_unfinished


def read_completions(answer: Answer) -> list[Completion]:
    """Returns all completions in the answer; the suite checks their number. Raises `WrongAnswer`."""
    return [
        Completion(
            each.request_id,
            each.token_ids,
            FinishReason(each.finish_reason),
            each.error,
            logprobs=_each(each.logprobs),
            prompt_logprobs=_each(each.prompt_logprobs),
        )
        for each in _read(_Generated, answer).completions
    ]


def read_events(answer: Answer) -> list[TokenEvent]:
    """Returns the events of a step. Raises `WrongAnswer`."""
    return [
        TokenEvent(
            each.request_id,
            each.token_id,
            None if each.finish_reason is None else FinishReason(each.finish_reason),
            each.error,
            _logprobs(each.logprobs),
        )
        for each in _read(_Stepped, answer).events
    ]


def _each(given: tuple[_Logprobs | None, ...] | None) -> Any:
    return None if given is None else tuple(map(_logprobs, given))


def _logprobs(given: _Logprobs | None) -> TokenLogprobs | None:
    return None if given is None else TokenLogprobs(given.logprob, given.rank, given.top)
