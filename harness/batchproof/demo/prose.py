"""Words and widths for text that people read."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence

IDLE = "."  # a slot without a request
PROSE_WIDTH = 80  # longer lines read badly, however wide the terminal is


def prose(sentences: str, width: int, indent: str = "   ") -> list[str]:
    return textwrap.wrap(
        sentences, min(width, PROSE_WIDTH), initial_indent=indent, subsequent_indent=indent
    )


def many(count: int, noun: str) -> str:
    """Returns a count with its noun: `1 slot`, `3 slots`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def listed(words: Sequence[str]) -> str:
    """Returns `A`, `A and B`, or `A, B and C`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def span(steps: range) -> str:
    """Returns steps that count from 0 as people count them, from 1: `4` or `4-9`."""
    return str(steps.start + 1) if len(steps) == 1 else f"{steps.start + 1}-{steps.stop}"


def quoted(text: str, width: int) -> str:
    """Returns a text in quotes on one line, at most `width` columns, shortened with `...` if needed.

    Control characters are escaped, and a wide character counts as the two columns it takes.
    """
    visible = [each if each.isprintable() else repr(each)[1:-1] for each in text]
    room = width - 2
    if sum(map(_columns, visible)) > room:
        room -= len("...")
        while sum(map(_columns, visible)) > room:
            visible.pop()
        visible.append("...")
    return f'"{"".join(visible)}"'


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def shortened(token_ids: Sequence[int], width: int) -> str:
    """Returns token ids in at most `width` columns, with how many are left out."""
    for count in range(len(token_ids), 0, -1):
        rest = len(token_ids) - count
        line = " ".join(map(str, token_ids[:count])) + (f" ... ({rest} more)" if rest else "")
        if len(line) <= width:
            return line
    return many(len(token_ids), "token")
