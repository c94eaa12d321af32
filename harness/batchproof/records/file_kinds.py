"""Kinds of result files. Each has a schema `name/version`, one reader and one writer."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

from batchproof.errors import UsageError
from batchproof.records.decode import DecodeError, decode, encode

Record = TypeVar("Record")
LONGEST_LINE = 1000  # characters of a line of plain values


@dataclass(frozen=True)
class FileKind(Generic[Record]):
    """One kind of result file. `what` names the kind in messages."""

    what: str
    name: str
    version: int
    record: type[Record]

    @property
    def schema(self) -> str:
        """Returns the schema that the file states, such as `batchproof.kills/1`."""
        return f"{self.name}/{self.version}"

    def read(self, path: Path) -> Record:
        """Returns the record in the file. Raises `UsageError` naming the file if it is missing,
        foreign, of another version or damaged."""
        return self.of(path, parsed(path, self.what))

    def of(self, path: Path, document: object) -> Record:
        """Returns the record of a document that `parsed` has read. Raises as `read` does."""
        if not isinstance(document, Mapping):
            found = (
                "null" if document is None else "a list" if isinstance(document, list) else "a value"
            )
            raise UsageError(f"'{path}' is no {self.what}: it holds {found}, not an object")
        schema = document.get("schema")
        if schema != self.schema:
            raise UsageError(
                f"'{path}' is no {self.what}: its schema is {schema!r}, not {self.schema!r}"
            )
        values = {key: value for key, value in document.items() if key != "schema"}
        try:
            return decode(self.record, values)
        except DecodeError as error:
            raise UsageError(f"{self.what} '{path}' is damaged: {error}") from None

    def write(self, record: Record, path: Path) -> None:
        """Replaces the file by the record, atomically. Raises `UsageError` if it cannot be written."""
        replace_text(path, json_lines({"schema": self.schema} | encode(record)))


def parsed(path: Path, what: str = "result file") -> object:
    """Returns the JSON value in a file. Raises `UsageError`, in which it is called `what`."""
    if path.is_dir():
        raise UsageError(f"'{path}' is a directory, but must be a {what}")
    try:
        document: object = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except FileNotFoundError as error:
        raise UsageError(f"there is no {what} '{path}'") from error
    except OSError as error:
        raise UsageError(f"{what} '{path}' cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, or not JSON
        raise UsageError(f"'{path}' is no {what}: it is not JSON ({error})") from error
    return document


def json_lines(document: Mapping[str, object]) -> str:
    """Returns a document as JSON with a line for each key. A list or an object that holds others has a
    line for each of them, so that a changed row is a changed line; plain values fill lines."""
    keys = (f" {json.dumps(key)}: {_rows(value)}" for key, value in document.items())
    return "{\n" + ",\n".join(keys) + "\n}\n"


def _rows(value: object) -> str:
    if isinstance(value, Mapping) and value:
        rows, parts = [f"{_line(key)}: {_line(each)}" for key, each in value.items()], value.values()
        return _bracketed("{}", rows, parts)
    return _bracketed("[]", map(_line, value), value) if isinstance(value, list) else _line(value)


def _bracketed(brackets: str, rows: Iterable[str], parts: Iterable[object]) -> str:
    if not any(isinstance(each, Mapping | list) for each in parts):
        rows = [*_filled(rows)]
        if len(rows) == 1:
            return f"{brackets[0]}{rows[0]}{brackets[1]}"
    return f"{brackets[0]}\n" + ",\n".join(f"  {row}" for row in rows) + f"\n {brackets[1]}"


def _line(value: object) -> str:
    return json.dumps(value, allow_nan=False)


def _filled(texts: Iterable[str]) -> Iterator[str]:
    """Yields the texts, as many on a line as fit."""
    row = ""
    for text in texts:
        if row and len(row) + len(text) > LONGEST_LINE:
            yield row
            row = ""
        row = f"{row}, {text}" if row else text
    yield row


def replace_text(path: Path, text: str) -> None:
    """Writes a temporary file that replaces the old one: a reader never sees half of it. Raises
    `UsageError` if the file cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"result file '{path}' cannot be written: {error.strerror}") from error


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
