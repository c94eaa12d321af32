"""Between JSON and the types of the contract. What comes in is checked to the letter: a wrong type is
the program's mistake, and repairing it here would hide that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from batchproof.api import (
    Completion,
    EngineConfig,
    FinishReason,
    Request,
    TokenEvent,
)

Answer = Mapping[str, Any]  # a JSON object
T = TypeVar("T")

# "aborted" is for `abort`, which a completion of `generate` cannot have seen.
COMPLETION_REASONS = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR)
REPR_LEN = 100
MOST_NOTE_CHARACTERS = 400


class WrongAnswer(ValueError):
    """A JSON object that is not the answer to the question; the words follow "answered ... with"."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Who answers, and what it can do beyond `generate`, as it says. `notes`: its conventions and
    settings, in sentences, for a report."""

    name: str
    version: str
    capabilities: tuple[str, ...]
    notes: tuple[str, ...] = ()


def request_to_json(request: Request) -> dict[str, Any]:
    """Ids of a set in ascending order, so that equal requests are equal lines."""
    return {
        "request_id": request.request_id,
        "prompt_token_ids": list(request.prompt_token_ids),
        "max_new_tokens": request.max_new_tokens,
        "eos_token_ids": sorted(request.eos_token_ids),
    }


def config_to_json(config: EngineConfig) -> dict[str, Any]:
    return asdict(config)


def read_error(answer: Answer) -> str | None:
    """What the engine raised, if it did: the one answer that fits any question."""
    if "error" not in answer:
        return None
    _only(answer, "an error", ("error",))
    return _field(answer, "an error", "error", str)


def read_hello(answer: Answer) -> Hello:
    _only(answer, "a hello", ("name", "version", "capabilities", "notes"))
    return Hello(
        _field(answer, "a hello", "name", str),
        _field(answer, "a hello", "version", str),
        _texts(answer, "capabilities", "names"),
        _notes(answer),
    )


def _notes(answer: Answer) -> tuple[str, ...]:
    """They stand in a page: a line break or an escape in one could forge another part of it."""
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
    _only(answer, "an answer", ())


def read_build(answer: Answer) -> str | None:
    """Why the model cannot be served; None if it can."""
    _only(answer, "an answer", ("unsupported",))
    return _field(answer, "an answer", "unsupported", str) if answer else None


def read_add(answer: Answer) -> bool:
    """Is the id live already?"""
    _only(answer, "an answer", ("live",))
    return _field(answer, "an answer", "live", bool) if answer else False


def read_has_unfinished(answer: Answer) -> bool:
    _only(answer, "an answer", ("has_unfinished",))
    return _field(answer, "an answer", "has_unfinished", bool)


def read_completions(answer: Answer) -> list[Completion]:
    """As many as came: whether that is the right number is the suite's question."""
    _only(answer, "an answer", ("completions",))
    return [_completion(each, f"completion {i}") for i, each in _objects(answer, "completions")]


def read_events(answer: Answer) -> list[TokenEvent]:
    _only(answer, "an answer", ("events",))
    return [_event(each, f"event {i}") for i, each in _objects(answer, "events")]


def _completion(given: Answer, who: str) -> Completion:
    _only(given, who, ("request_id", "token_ids", "finish_reason", "error"))
    token_ids = _field(given, who, "token_ids", list)
    strange = [token for token in token_ids if type(token) is not int]  # a bool is an int to isinstance
    if strange:
        raise WrongAnswer(f"{who}, whose token_ids hold {_short(strange[0])}, but should be integers")
    return Completion(
        _field(given, who, "request_id", str),
        tuple(token_ids),
        _reason(given.get("finish_reason"), who, COMPLETION_REASONS),
        _optional(given, who, "error", str),
    )


def _event(given: Answer, who: str) -> TokenEvent:
    _only(given, who, ("request_id", "token_id", "finish_reason", "error"))
    reason = given.get("finish_reason")
    if "token_id" not in given:
        raise WrongAnswer(f"{who}, which has no token_id; give null where there is no token")
    return TokenEvent(
        _field(given, who, "request_id", str),
        _optional(given, who, "token_id", int),
        None if reason is None else _reason(reason, who, tuple(FinishReason)),
        _optional(given, who, "error", str),
    )


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


def _only(given: Answer, who: str, fields: tuple[str, ...]) -> None:
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
    told = repr(value)
    return told if len(told) <= REPR_LEN else f"{told[:REPR_LEN]}..."
