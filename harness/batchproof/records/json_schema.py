"""The JSON schema of a kind of result file, from its dataclasses.

`python -m batchproof.records.json_schema` prints that of verdicts, for docs/verdict.schema.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from batchproof.records.decode import fields_by_key
from batchproof.records.file_kinds import FileKind
from batchproof.records.verdict import VERDICT

TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
Schema = dict[str, Any]


def schema_of(kind: FileKind[Any]) -> Schema:
    """Returns the schema of what the writer writes; readers ignore further keys."""
    known: dict[str, Schema] = {}
    _reference(kind.record, known)
    whole = known.pop(kind.record.__name__)
    properties = {"schema": {"const": kind.schema}} | whole["properties"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": kind.schema,
        **whole,
        "required": list(properties),
        "properties": properties,
        "$defs": dict(sorted(known.items())),
    }


def _reference(record: type, known: dict[str, Schema]) -> Schema:
    """Returns a reference to a dataclass, whose schema it adds to those known."""
    name = record.__name__
    if name not in known:
        known[name] = {}  # while its fields are read
        properties = {key: _schema(each, known) for key, (_, each) in fields_by_key(record).items()}
        words = " ".join((record.__doc__ or "").split())
        known[name] = {
            "description": words,
            "type": "object",
            "required": list(properties),
            "properties": properties,
        }
    return {"$ref": f"#/$defs/{name}"}


def _schema(kind: Any, known: dict[str, Schema]) -> Schema:
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return _reference(kind, known)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(each, known) for each in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], known)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema(arguments[1], known)}
    return {} if kind is object else {"type": TYPES[kind]}


def text_of(kind: FileKind[Any]) -> str:
    """Returns the schema as it is published."""
    return json.dumps(schema_of(kind), indent=1) + "\n"


if __name__ == "__main__":
    print(text_of(VERDICT), end="")
