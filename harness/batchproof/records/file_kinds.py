"""Kinds of result files. Each has a schema `name/version`, one reader and one writer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from batchproof.errors import UsageError
from batchproof.records.decode import DecodeError, decode, encode

Record = TypeVar("Record")


@dataclass(frozen=True)
class FileKind(Generic[Record]):
    """One kind of result file. `what` names the kind in messages. `upgrade` makes a document of this
    version out of one of the version before, which is then read as well; it raises `DecodeError`.
    """

    what: str
    name: str
    version: int
    record: type[Record]
    upgrade: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None

    @property
    def schema(self) -> str:
        """Returns the schema that the file states, such as `batchproof.kills/1`."""
        return f"{self.name}/{self.version}"

    def owns(self, document: object) -> bool:
        """Returns whether a document is of this kind, in whatever version."""
        schema = document.get("schema") if isinstance(document, Mapping) else None
        return isinstance(schema, str) and schema.partition("/")[0] == self.name

    def read(self, path: Path) -> Record:
        """Returns the record in the file. Raises `UsageError` naming the file if it is missing,
        foreign, too new or damaged.
        """
        return self.of(path, parsed(path))

    def of(self, path: Path, document: object) -> Record:
        """Returns the record of a document that `parsed` has read. Raises `UsageError` as `read`
        does.
        """
        if not isinstance(document, Mapping):
            found = (
                "null" if document is None else "a list" if isinstance(document, list) else "a value"
            )
            raise UsageError(f"'{path}' is no result file: it holds {found}, not an object")
        is_older = self.upgrade and document.get("schema") == f"{self.name}/{self.version - 1}"
        if not is_older:
            self._require_schema(path, document.get("schema"))
        try:
            new = self.upgrade(document) if self.upgrade and is_older else document
            return decode(self.record, new)
        except DecodeError as error:
            raise UsageError(f"result file '{path}' is damaged: {error}") from None

    def write(self, record: Record, path: Path) -> None:
        """Replaces the file by the record, atomically. Raises `UsageError` if it cannot be written."""
        document = {"schema": self.schema} | encode(record)
        replace_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")

    def _require_schema(self, path: Path, schema: object) -> None:
        name, _, version = schema.partition("/") if isinstance(schema, str) else ("", "", "")
        is_number = version.isascii() and version.isdigit()
        if name == self.name and is_number and int(version) > self.version:
            raise UsageError(
                f"'{path}' has schema {schema!r}, but this version of Batchproof reads up to "
                f"{self.schema!r}"
            )
        if schema != self.schema:
            raise UsageError(
                f"'{path}' is no {self.what}: its schema is {schema!r}, not {self.schema!r}"
            )


def parsed(path: Path) -> object:
    """Returns the JSON value in a result file. Raises `UsageError`."""
    if path.is_dir():
        raise UsageError(f"'{path}' is a directory, but must be a result file")
    try:
        document: object = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError as error:
        raise UsageError(f"there is no result file '{path}'") from error
    except OSError as error:
        raise UsageError(f"result file '{path}' cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, or not JSON
        raise UsageError(f"'{path}' is no result file: it is not JSON ({error})") from error
    return document


def replace_text(path: Path, text: str) -> None:
    """Writes a temporary file that replaces the old one: a reader never sees half of it.

    Raises `UsageError` if the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"result file '{path}' cannot be written: {error.strerror}") from error


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
