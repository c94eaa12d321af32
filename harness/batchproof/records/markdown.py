"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator


def header(*cells: str) -> Iterator[str]:
    yield line(*cells)
    yield line(*("---" for _ in cells))


def line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
