"""Frozen dataclasses to JSON and back, by pydantic.

The fields of a dataclass are the keys of its object; `Annotated[str, Field(alias="class")]` gives a
field a key that is no identifier. A field without a default is required. Values are strict: the text
"1" is no number, and a key that is no field is refused unless the document is open.
"""

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

Record = TypeVar("Record")
LONGEST_SHOWN = 40  # characters of a value in a message


class DecodeError(ValueError):
    """A value that does not fit its place. The message begins with the place: `cells.static.P1`."""


def decode(kind: type[Record], value: object, is_closed: bool = True) -> Record:
    """Returns the record that the JSON value holds. Unless `is_closed`, unknown keys are ignored. An
    engine's texts may hold lone surrogates, which are no Unicode: they are read as question marks.
    Raises `DecodeError` naming the first place that does not fit."""
    text = json.dumps([value], ensure_ascii=False).encode(errors="replace")
    reader = _adapter(cast(Hashable, kind), is_closed)
    try:
        (record,) = reader.validate_json(text)
    except ValidationError as error:
        raise DecodeError(_sentence(error.errors(include_url=False))) from None
    return cast(Record, record)


def encode(record: object) -> Any:
    """Returns the JSON value of a record: objects, lists, strings and finite numbers. A number that is
    not finite becomes a text, because JSON has none."""
    if is_dataclass(record) and not isinstance(record, type):
        return {key: encode(getattr(record, name)) for name, key in keys_of(type(record)).items()}
    if isinstance(record, Mapping):
        return {str(name): encode(value) for name, value in record.items()}
    if isinstance(record, list | tuple):
        return [encode(value) for value in record]
    return str(record) if isinstance(record, float) and not math.isfinite(record) else record


@cache
def _adapter(kind: Hashable, is_closed: bool) -> TypeAdapter[list[Any]]:
    """Returns what reads lists of the record: pydantic takes no configuration for a bare dataclass."""
    return TypeAdapter(
        list[kind],  # type: ignore[valid-type]
        config=ConfigDict(strict=True, extra="forbid" if is_closed else "ignore"),
    )


@cache
def keys_of(kind: type) -> dict[str, str]:
    """Returns the key of each field in JSON."""
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: _key(each.name, hints[each.name]) for each in fields(kind)}


def _key(name: str, hint: Any) -> str:
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    aliases = (each.alias for each in extras if isinstance(each, FieldInfo) and each.alias)
    return next(aliases, name)


def _sentence(errors: Sequence[ErrorDetails]) -> str:
    """Returns the first problem, in the words of pydantic; an unknown key before a missing one, which
    it may be meant for."""
    foreign = (each for each in errors if each["type"] == "unexpected_keyword_argument")
    error = next(foreign, errors[0])
    steps = (f"[{each}]" if isinstance(each, int) else f".{each}" for each in error["loc"][1:])
    place, what = "".join(steps).lstrip(".") or "it", error["msg"][:1].lower() + error["msg"][1:]
    if error["type"] in ("unexpected_keyword_argument", "missing"):
        return f"{place}: {what}"
    shown = json.dumps(error["input"], default=str)
    return f"{place} is {shown if len(shown) <= LONGEST_SHOWN else 'long'}: {what}"
