"""One changed point of a source file, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mutant:
    """A source file with one expression or statement replaced.

    `begin` and `end` are offsets in bytes of the UTF-8 text; `ordinal` counts equal changes in one
    function.
    """

    path: Path
    function: str  # qualified name within the module, empty at its top level
    line: int
    statement: int  # the line on which the statement around it begins
    begin: int
    end: int
    before: str
    after: str
    ordinal: int = 0

    def source(self) -> bytes:
        """Returns the whole changed file."""
        text = self.path.read_bytes()
        return text[: self.begin] + self.after.encode() + text[self.end :]

    def name(self, root: Path) -> str:
        """Returns what identifies the mutant while its function stays as it is, wherever it stands."""
        file = self.path.relative_to(root) if self.path.is_relative_to(root) else self.path
        again = f" #{self.ordinal + 1}" if self.ordinal else ""
        return f"{file.as_posix()}::{self.function or 'module'}: {self.before} => {self.after}{again}"
