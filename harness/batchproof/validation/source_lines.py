"""Files that people write, and their lines, for errors about their content."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batchproof.errors import CaseError
from batchproof.validation.values import InvalidValueError


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a file; every complaint about its content begins with it."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"

    def error(self, message: str) -> CaseError:
        return CaseError(f"{self}: {message}")

    @contextmanager
    def located(self) -> Iterator[None]:
        """Turns an `InvalidValueError` of the block into a `CaseError` about this line."""
        try:
            yield
        except InvalidValueError as error:
            raise self.error(str(error)) from None


def read_text(path: Path) -> str:
    """Returns the text of a file. Raises `CaseError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise SourceLine(shown_path(path), 1).error(f"this file cannot be read: {problem}") from None


def shown_path(path: Path) -> str:
    """Returns the path relative to the working directory, if it is below that."""
    resolved, here = path.resolve(), Path.cwd()
    return str(resolved.relative_to(here) if resolved.is_relative_to(here) else resolved)
