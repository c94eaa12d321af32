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
KINDS = {
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "an object",
    "mapping_type": "an object",
    "dataclass_type": "an object",
}
LONGEST_SHOWN = 40  # characters of a value in a message


class DecodeError(ValueError):
    """A value that does not fit its place. The message begins with the place: `cells.static.P1`."""


def decode(kind: type[Record], value: object, is_closed: bool = True) -> Record:
    """Returns the record that the JSON value holds. Unless `is_closed`, unknown keys are ignored. An
    engine's texts may hold lone surrogates, which are no Unicode: they are read as question marks.

    Raises `DecodeError` naming the first place that does not fit."""
    text = json.dumps([value], ensure_ascii=False).encode(errors="replace")
    reader = adapter(cast(Hashable, kind), is_closed)
    try:
        (record,) = reader.validate_json(text)
    except ValidationError as error:
        raise DecodeError(_sentence(kind, value, error.errors(include_url=False))) from None
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
def adapter(kind: Hashable, is_closed: bool) -> TypeAdapter[list[Any]]:
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


def _sentence(kind: type, value: object, errors: Sequence[ErrorDetails]) -> str:
    """Returns the first problem; an unknown key before a missing one, which it may be meant for."""
    foreign = (each for each in errors if each["type"] == "unexpected_keyword_argument")
    error = next(foreign, errors[0])
    place, last = _place(value, error["loc"][1:]), error["loc"][-1]
    if error["type"] == "missing":
        return f"{place} has no {last!r}"
    if error["type"] == "unexpected_keyword_argument":
        steps = error["loc"][1:-1]
        known = ", ".join(keys_of(_kind_at(kind, steps)).values()) or "none"
        return f"{_place(value, steps)} has the key {last!r}, but may have {known}"
    if error["type"] == "literal_error":
        choices = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        return f"{place} is {_shown(error['input'])}, not one of {choices}"
    if error["type"] == "value_error":
        return f"{place} is wrong: {error['ctx']['error']}"
    alike = [each for each in errors if _place(value, each["loc"][1:]) == place]  # of a union
    kinds = dict.fromkeys(KINDS.get(each["type"]) or each["msg"] for each in alike)
    return f"{place} is {_shown(error['input'])}, not {' or '.join(kinds)}"


def _kind_at(kind: type, steps: Sequence[int | str]) -> type:
    """Returns the innermost dataclass on the way to a place."""
    for step in steps:
        names = {key: name for name, key in keys_of(kind).items()}
        if step in names:
            kind = _dataclass_in(get_type_hints(kind)[names[str(step)]]) or kind
    return kind


def _dataclass_in(hint: Any) -> type | None:
    if isinstance(hint, type) and is_dataclass(hint):
        return hint
    return next(filter(None, map(_dataclass_in, get_args(hint))), None)


def _place(value: object, steps: Sequence[int | str]) -> str:
    """Returns a position in the value, as one would index it. A step that is not there is a name of
    pydantic's for a kind of value, or a missing key."""
    path = ""
    for step in steps:
        if isinstance(value, list | tuple) and isinstance(step, int):
            path, value = f"{path}[{step}]", value[step]
        elif isinstance(value, Mapping) and step in value:
            path, value = f"{path}.{step}", value[step]
    return path.lstrip(".") or "it"


def _shown(value: object) -> str:
    """Returns the value itself if it is short, else its kind."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return repr(value) if len(repr(value)) <= LONGEST_SHOWN else "a long text"
