"""Frozen dataclasses to JSON and back.

The fields of a dataclass are the keys of its object; `Annotated[str, Key("class")]` gives a field a key
that is no identifier. A field without a default is required. Supported are dataclasses, `str`, `int`,
`float`, `bool`, `None`, `Literal`, unions of these, `tuple[X, ...]` for lists, `Mapping[str, X]` for
objects, and `object` for any JSON value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
WORDS: dict[object, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
}
LONGEST_SHOWN = 40  # characters of a value in a message


class DecodeError(ValueError):
    """A value that does not fit its place. The message begins with the place: `cells.static.P1`."""


@dataclass(frozen=True)
class Key:
    """Gives a field a key in JSON that is not the field's name."""

    name: str


@dataclass(frozen=True)
class _Place:
    """A position in a document, as one would index it. A closed document allows known keys only."""

    path: str = ""
    is_closed: bool = False

    def at(self, step: str) -> _Place:
        return _Place(f"{self.path}{step}".lstrip("."), self.is_closed)

    def error(self, problem: str) -> DecodeError:
        return DecodeError(f"{self.path or 'it'} {problem}")


def decode(kind: type[Record], value: object, is_closed: bool = False) -> Record:
    """Returns the record that the JSON value holds. Unknown keys are ignored unless `is_closed`.

    Raises `DecodeError` naming the first place that does not fit."""
    return cast(Record, _decode(kind, value, _Place(is_closed=is_closed)))


def encode(record: object) -> Any:
    """Returns the JSON value of a record: objects, lists, strings and numbers."""
    if is_dataclass(record) and not isinstance(record, type):
        known = fields_by_key(type(record)).items()
        return {name: encode(getattr(record, each.name)) for name, (each, _) in known}
    if isinstance(record, Mapping):
        return {str(name): encode(value) for name, value in record.items()}
    if isinstance(record, list | tuple):
        return [encode(value) for value in record]
    return record


def _decode(kind: Any, value: object, place: _Place) -> object:
    origin = get_origin(kind)
    if kind is object:
        return value
    if origin is Annotated:
        return _decode(get_args(kind)[0], value, place)
    if origin in (Union, UnionType):
        return _one_of(get_args(kind), value, place)
    if is_dataclass(kind):
        return _dataclass(cast(type, kind), value, place)
    return _plain(kind, origin, value, place)


def _plain(kind: Any, origin: Any, value: object, place: _Place) -> object:
    """Returns a list, a mapping with free names, or a single value."""
    arguments = get_args(kind)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_decode(arguments[0], each, place.at(f"[{i}]")) for i, each in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        return {name: _decode(arguments[1], each, place.at(f".{name}")) for name, each in value.items()}
    if origin is Literal and value not in arguments:
        choices = ", ".join(sorted(map(str, arguments)))
        raise place.error(f"is {_shown(value)}, not one of {choices}")
    if not _is(kind, value):
        raise place.error(f"is {_shown(value)}, not {_words(kind)}")
    return value


def _one_of(kinds: tuple[Any, ...], value: object, place: _Place) -> object:
    """Decodes the first of several kinds that fits by its outer shape."""
    for kind in kinds:
        if _is(kind, value):
            return _decode(kind, value, place)
    raise place.error(f"is {_shown(value)}, not {' or '.join(map(_words, kinds))}")


def _is(kind: Any, value: object) -> bool:
    """Returns whether the outer shape of a value fits. True is no number; a whole number is a float."""
    origin = get_origin(kind)
    if kind is object or origin is Literal:
        return True
    if is_dataclass(kind) or origin is Mapping:
        return isinstance(value, Mapping)
    if origin is tuple:
        return isinstance(value, list | tuple)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def _dataclass(kind: type, value: object, place: _Place) -> object:
    if not isinstance(value, Mapping):
        raise place.error(f"is {_shown(value)}, not an object")
    known = fields_by_key(kind)
    for name in value:
        if place.is_closed and name not in known:
            raise place.error(f"has the key {name!r}, but may have {', '.join(known)}")
    given = {}
    for name, (each, its_kind) in known.items():
        if name in value:
            given[each.name] = _decode(its_kind, value[name], place.at(f".{name}"))
        elif each.default is MISSING and each.default_factory is MISSING:
            raise place.error(f"has no {name!r}")
    return kind(**given)


@cache
def fields_by_key(kind: type) -> dict[str, tuple[Field[object], Any]]:
    """Returns each field and its type by its key in JSON."""
    hints = get_type_hints(kind, include_extras=True)
    return {_key_of(each.name, hints[each.name]): (each, hints[each.name]) for each in fields(kind)}


def _key_of(name: str, kind: Any) -> str:
    extras = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((each.name for each in extras if isinstance(each, Key)), name)


def _words(kind: Any) -> str:
    """Returns a kind of value in words."""
    if is_dataclass(kind) or get_origin(kind) is Mapping:
        return "an object"
    return WORDS.get(kind, "a list")


def _shown(value: object) -> str:
    """Returns the value itself if it is short, else its kind."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return repr(value) if len(repr(value)) <= LONGEST_SHOWN else _words(type(value))
