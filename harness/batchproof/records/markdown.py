"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator


def header(*cells: str) -> Iterator[str]:
    """Yields the two lines that begin a table with these columns."""
    yield line(*cells)
    yield line(*("---" for _ in cells))


def line(*cells: str) -> str:
    """Returns one row of a table; bars in the cells are escaped."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
