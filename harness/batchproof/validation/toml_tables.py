"""TOML tables whose keys know their line. Each reading method returns a plain value, or raises
`CaseError` if the key holds another type."""

import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchproof.validation.source_lines import SourceLine, read_text, shown_path
from batchproof.validation.values import near

KeyPath = tuple[str | int, ...]  # a number is the place of a table in a list of tables
HEADER = re.compile(r"\s*(\[\[?)\s*([\w.-]+)\s*\]")
KEY = re.compile(r"\s*([\w-]+)\s*=")
POSITION = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
NOUNS = {list: "a list", dict: "a table"}


@dataclass(frozen=True, slots=True)
class TomlTable:
    """A table, called `what`, with the lines of all keys of its file."""

    values: Mapping[str, Any]
    what: str
    file: str
    path: KeyPath
    lines: Mapping[KeyPath, int]

    def place(self, *keys: str) -> SourceLine:
        """Where a key of this table begins, or the table itself."""
        return SourceLine(self.file, self.lines.get(self.path + keys, 1))

    def wrong(self, key: str, should_be: str) -> Exception:
        value = self.values[key]
        shown = str(value).lower() if isinstance(value, bool) else repr(value)
        for kind, noun in NOUNS.items():
            shown = noun if isinstance(value, kind) else shown
        return self.place(key).error(f"{key} is {shown}, but must be {should_be}")

    def text(self, key: str) -> str:
        """A text that is not blank."""
        value = self.values[key]
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, "a text that is not blank" if value == "" else "a text")
        return value

    def texts(self, key: str) -> list[str]:
        """A text, or a list of different ones; numbers become texts."""
        value = self.values[key]
        found = value if isinstance(value, list) else [value]
        if not all(type(each) in (str, int, float) for each in found):
            raise self.wrong(key, "a text or a number, or a list of these")
        texts = [str(each) for each in found]
        if not texts or len(set(texts)) < len(texts):
            twice = [each for each in texts if texts.count(each) > 1]
            problem = f"names {twice[0]!r} twice" if twice else "is an empty list"
            raise self.place(key).error(f"{key} {problem}, but must hold one or more different values")
        return texts

    def tables(self, key: str, what: str) -> Iterator["TomlTable"]:
        """The tables of a list, each called `what`."""
        found = self.values[key]
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise self.wrong(key, f"a list of tables: begin each with [[{'.'.join(self._names(key))}]]")
        for number, each in enumerate(found):
            yield TomlTable(each, what, self.file, (*self.path, key, number), self.lines)

    def require_keys(self, known: Collection[str], required: Collection[str] = ()) -> None:
        """Raises `CaseError` for a key that is not known, or a required one that is not there."""
        for key in self.values:
            if key not in known:
                hint = near(key, sorted(known))
                raise self.place(key).error(f"{self.what} has no key {key!r}; {hint}")
        for key in required:
            if key not in self.values:
                raise self.place().error(f"{self.what} lacks the key {key!r}")

    def _names(self, key: str) -> list[str]:
        return [each for each in (*self.path, key) if isinstance(each, str)]


def read_toml(path: Path, what: str) -> TomlTable:
    """Returns the root of a file, called `what`. Raises `CaseError` if it cannot be read as TOML."""
    shown, text = shown_path(path), read_text(path)
    try:
        return TomlTable(tomllib.loads(text), what, shown, (), key_lines(text))
    except tomllib.TOMLDecodeError as error:
        found = POSITION.search(str(error))
        line = int(found[1]) if found and found[1] else len(text.splitlines())
        problem = POSITION.sub("", str(error))
        raise SourceLine(shown, line).error(f"this is no valid TOML: {problem}") from None


def key_lines(text: str) -> dict[KeyPath, int]:
    """Returns the line of each header, and of each bare key that begins a line. A value of several
    lines that looks like one may add a key of its own, which is looked up by no one."""
    lines: dict[KeyPath, int] = {}
    sizes: Counter[KeyPath] = Counter()  # of lists of tables, so far
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := HEADER.match(line):
            table = tuple(header[2].split("."))
            for length in range(1, len(table) + 1):  # tables that have no header of their own, too
                lines.setdefault(table[:length], number)
            if header[1] == "[[":
                sizes[table] += 1
                table = (*table, sizes[table] - 1)
                lines[table] = number
        elif key := KEY.match(line):
            lines.setdefault((*table, key[1]), number)
    return lines
