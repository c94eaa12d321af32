"""Conversion between messages (`protocol.py`) and the types of the contract.

Answers are checked strictly: a wrong type is the program's mistake, and repairing it here would hide
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from batchproof.api import Completion, FinishReason, Request, TokenEvent, TokenLogprobs
from batchproof.workload.sampling_values import plain_values
from batchproof_engines.adapters.piped import protocol

Answer = Mapping[str, Any]  # a JSON object
T = TypeVar("T")

# A completion of `generate` cannot be "aborted": only `abort` ends a request so.
COMPLETION_REASONS = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR)
REPR_LEN = 100
MOST_NOTE_CHARACTERS = 400


class WrongAnswer(ValueError):
    """A JSON object that does not answer the question; its text follows "answered ... with"."""


@dataclass(frozen=True, slots=True)
class Hello:
    """How the program introduces itself. `notes` are its conventions and settings, in sentences for a
    report."""

    name: str
    version: str
    capabilities: tuple[str, ...]
    notes: tuple[str, ...] = ()
    sampling_fields: tuple[str, ...] | None = None  # None: all that its capabilities are about


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
    if "error" not in answer:
        return None
    _only(answer, "an error", protocol.Failed)
    return _field(answer, "an error", "error", str)


def read_hello(answer: Answer) -> Hello:
    """Returns how the program introduces itself. Raises `WrongAnswer`."""
    _only(answer, "a hello", protocol.Hello)
    return Hello(
        _field(answer, "a hello", "name", str),
        _field(answer, "a hello", "version", str),
        _texts(answer, "capabilities", "names"),
        _notes(answer),
        _texts(answer, "sampling_fields", "names") if "sampling_fields" in answer else None,
    )


def _notes(answer: Answer) -> tuple[str, ...]:
    """Returns the notes. They become part of a page, where a line break could forge another section."""
    notes = _texts(answer, "notes", "sentences")
    for note in notes:
        if not note.isprintable() or not 0 < len(note) <= MOST_NOTE_CHARACTERS:
            raise WrongAnswer(
                f"a note {_short(note)}, but notes are one printable line of at most "
                f"{MOST_NOTE_CHARACTERS} characters"
            )
    return notes


def _texts(answer: Answer, key: str, what: str) -> tuple[str, ...]:
    given = answer.get(key, [])
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise WrongAnswer(f"{key} {_short(given)}, but they should be a list of {what}")
    return tuple(given)


def read_nothing(answer: Answer) -> None:
    """Checks that the answer is empty. Raises `WrongAnswer`."""
    _only(answer, "an answer", protocol.Nothing)


def read_build(answer: Answer) -> str | None:
    """Returns why the model cannot be served, or None if it can. Raises `WrongAnswer`."""
    _only(answer, "an answer", protocol.Built)
    return _field(answer, "an answer", "unsupported", str) if answer else None


def read_add(answer: Answer) -> bool:
    """Returns whether the id was live already. Raises `WrongAnswer`."""
    _only(answer, "an answer", protocol.Added)
    return _field(answer, "an answer", "live", bool) if answer else False


def read_has_unfinished(answer: Answer) -> bool:
    """Returns whether the engine has unfinished requests. Raises `WrongAnswer`."""
    _only(answer, "an answer", protocol.HasUnfinished)
    return _field(answer, "an answer", "has_unfinished", bool)


def read_completions(answer: Answer) -> list[Completion]:
    """Returns all completions in the answer; the suite checks their number. Raises `WrongAnswer`."""
    _only(answer, "an answer", protocol.Generated)
    return [_completion(each, f"completion {i}") for i, each in _objects(answer, "completions")]


def read_events(answer: Answer) -> list[TokenEvent]:
    """Returns the events of a step. Raises `WrongAnswer`."""
    _only(answer, "an answer", protocol.Stepped)
    return [_event(each, f"event {i}") for i, each in _objects(answer, "events")]


def _completion(given: Answer, who: str) -> Completion:
    _only(given, who, protocol.Completion)
    token_ids = _field(given, who, "token_ids", list)
    strange = [token for token in token_ids if type(token) is not int]  # a bool is an int to isinstance
    if strange:
        raise WrongAnswer(f"{who}, whose token_ids hold {_short(strange[0])}, but should be integers")
    return Completion(
        _field(given, who, "request_id", str),
        tuple(token_ids),
        _reason(given.get("finish_reason"), who, COMPLETION_REASONS),
        _optional(given, who, "error", str),
        logprobs=_each(_optional(given, who, "logprobs", list), lambda one: _logprobs(one, who)),
        prompt_logprobs=_each(
            _optional(given, who, "prompt_logprobs", list),
            lambda one: None if one is None else _logprobs(one, who),
        ),
    )


def _event(given: Answer, who: str) -> TokenEvent:
    _only(given, who, protocol.Event)
    reason = given.get("finish_reason")
    if "token_id" not in given:
        raise WrongAnswer(f"{who}, which has no token_id; give null where there is no token")
    return TokenEvent(
        _field(given, who, "request_id", str),
        _optional(given, who, "token_id", int),
        None if reason is None else _reason(reason, who, tuple(FinishReason)),
        _optional(given, who, "error", str),
        None if given.get("logprobs") is None else _logprobs(given["logprobs"], who),
    )


def _each(given: list[Any] | None, read: Callable[[Any], T]) -> tuple[T, ...] | None:
    return None if given is None else tuple(map(read, given))


def _logprobs(given: Any, who: str) -> TokenLogprobs:
    if not isinstance(given, dict):
        raise WrongAnswer(f"{who} whose logprobs hold {_short(given)}, but should hold JSON objects")
    whose = f"{who} with logprobs"
    _only(given, whose, protocol.Logprobs)
    top = tuple(_pair(each, whose) for each in _field(given, whose, "top", list))
    rank = _optional(given, whose, "rank", int)
    return TokenLogprobs(_number(given.get("logprob"), whose), rank, top)


def _pair(given: object, who: str) -> tuple[int, float]:
    if not isinstance(given, list) or len(given) != 2 or type(given[0]) is not int:
        raise WrongAnswer(f"{who} whose top holds {_short(given)}, but should hold [token id, logprob]")
    return given[0], _number(given[1], who)


def _number(given: object, who: str) -> float:
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise WrongAnswer(f"{who} of which one is {_short(given)}, but should be a number")
    return float(given)


def _reason(given: object, who: str, allowed: Iterable[FinishReason]) -> FinishReason:
    names = [reason.value for reason in allowed]
    if not isinstance(given, str) or given not in names:
        choices = ", ".join(names)
        raise WrongAnswer(
            f"{who}, whose finish_reason is {_short(given)}, but should be one of {choices}"
        )
    return FinishReason(given)


def _objects(answer: Answer, key: str) -> Iterable[tuple[int, Answer]]:
    for i, each in enumerate(_field(answer, "an answer", key, list)):
        if not isinstance(each, dict):
            raise WrongAnswer(f"{key} that hold {_short(each)}, but should hold JSON objects")
        yield i, each


def _only(given: Answer, who: str, message: type) -> None:
    """Raises `WrongAnswer` for a field that the message of the protocol does not have."""
    fields = protocol.fields(message)
    unknown = [key for key in given if key not in fields]
    if unknown:
        known = f"may have {', '.join(fields)}" if fields else "should be {}"
        raise WrongAnswer(f"{who} that has the field {_short(unknown[0])}, but {known}")


def _field(given: Answer, who: str, key: str, kind: type[T]) -> T:
    if key not in given:
        raise WrongAnswer(f"{who} that lacks the field {key!r}")
    value = given[key]
    if type(value) is not kind:
        raise WrongAnswer(f"{who} whose {key} is {_short(value)}, but should be {JSON_NAMES[kind]}")
    return value


def _optional(given: Answer, who: str, key: str, kind: type[T]) -> T | None:
    return None if given.get(key) is None else _field(given, who, key, kind)


JSON_NAMES: dict[type, str] = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    list: "a list",
}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= REPR_LEN else f"{text[:REPR_LEN]}..."
