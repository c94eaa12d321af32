"""The JSON schema of a kind of result file, from its dataclasses.

`python -m batchproof.records.json_schema` prints that of verdicts, for docs/verdict.schema.json.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

from batchproof.records.decode import adapter
from batchproof.records.file_kinds import FileKind, json_lines
from batchproof.records.verdict import VERDICT

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(kind: FileKind[Any]) -> dict[str, Any]:
    """Returns the schema of what the writer writes: every key is there."""
    definitions = adapter(cast(Hashable, kind.record), True).json_schema(mode="serialization")["$defs"]
    for each in definitions.values():
        each["required"] = list(each["properties"])
    whole = definitions.pop(kind.record.__name__)
    properties = {"schema": {"const": kind.schema}} | whole["properties"]
    head = {"$schema": DIALECT, **whole, "title": kind.schema}
    return {**head, "required": list(properties), "properties": properties, "$defs": definitions}


def text_of(kind: FileKind[Any]) -> str:
    """Returns the schema as it is published."""
    return json_lines(schema_of(kind))


if __name__ == "__main__":
    print(text_of(VERDICT), end="")
