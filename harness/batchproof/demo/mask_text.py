"""The attention mask of one packed step and its packed row, in letters.

Every function returns lines of at most `width` characters. What does not fit is elided, drawn as `~`,
and named below the drawing. Request ids are single capital letters.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from batchproof.api import RowRecord

if TYPE_CHECKING:
    from torch import Tensor

ELIDED = "~"
SMALLEST = 3  # first, ~, last: nothing is elided below that
LABEL = "{:>2} {:>5}  "  # a query's letter and position
MAX_QUERY_LINES = 24
Column = tuple[str, int | str | None]  # its letter; a key's index in the mask, None: elided, or a gap
SEPARATOR: Column = (" | ", " | ")


def elide(length: int, limit: int, first: int = 0) -> list[int | None]:
    """Returns the indices from `first` on, with the middle left out (None) so that at most `limit`
    remain.
    """
    indices = range(first, first + length)
    if length <= limit:
        return list(indices)
    head = limit // 2
    return [*indices[:head], None, *indices[length - (limit - 1 - head) :]]


def largest_limit(lens: Sequence[int], fits: Callable[[int], bool]) -> int:
    """Returns the largest limit on a block's length that fits, or `SMALLEST` if even that does not
    fit.
    """
    return next((limit for limit in range(max(lens), SMALLEST, -1) if fits(limit)), SMALLEST)


def draw_mask(rows: Sequence[RowRecord], mask: Tensor, width: int) -> list[str]:
    """Returns the mask `(total_q, total_kv)` as a grid: `#` may attend, `.` may not.

    A line stands for a query and a column for a key: cached keys, then `|`, then the keys of the fed
    tokens.
    """
    shown = _rows_that_fit(rows, width)
    limit = largest_limit(
        [max(row.context_len, row.query_len) for row in rows],
        lambda n: _grid_width(rows, shown, n) <= width,
    )
    cached, fed = _columns(rows, shown, limit)
    lines = _mask_header(cached, fed)
    height = largest_limit(
        [row.query_len for row in shown],
        lambda n: _num_lines(shown, n) <= MAX_QUERY_LINES,
    )
    keys = [key for _, key in (*cached, SEPARATOR, *fed)]
    first = 0
    for row in rows:
        for offset in elide(row.query_len, height) if row in shown else ():
            query = None if offset is None else first + offset
            position = ELIDED if offset is None else str(row.context_len + offset)
            lines.append(_mask_line(row, position, query, keys, mask))
        first += row.query_len
    return [*lines, *_left_out(rows, shown, limit, height, width)]


def _columns(
    rows: Sequence[RowRecord], shown: Sequence[RowRecord], limit: int
) -> tuple[list[Column], list[Column]]:
    """Returns the columns of the cached keys, and those of the keys fed now."""
    num_cached = sum(row.context_len for row in rows)
    cached = _group(rows, shown, limit, "context_len", 0)
    return cached, _group(rows, shown, limit, "query_len", num_cached)


def _group(
    rows: Sequence[RowRecord], shown: Sequence[RowRecord], limit: int, field: str, first: int
) -> list[Column]:
    """Returns columns for the keys from `first` on: `field` of each row, a gap between two rows."""
    columns: list[Column] = []
    for row in rows:
        length = getattr(row, field)
        if row in shown and length:
            columns += [(" ", " ")] if columns else []
            columns += [(row.request_id, key) for key in elide(length, limit, first)]
        first += length
    return columns


def _grid_width(rows: Sequence[RowRecord], shown: Sequence[RowRecord], limit: int) -> int:
    cached, fed = _columns(rows, shown, limit)
    return len(LABEL.format("", "")) + len(cached) + len(SEPARATOR[0]) + len(fed) + len("  A")


def _num_lines(rows: Sequence[RowRecord], limit: int) -> int:
    return sum(min(row.query_len, limit) for row in rows)


def _rows_that_fit(rows: Sequence[RowRecord], width: int) -> list[RowRecord]:
    """Returns all rows, or leaves out the last decodes if even elided ones are
    too many for the grid.
    """
    shown = list(rows)
    while len(shown) > 1 and (
        _grid_width(rows, shown, SMALLEST) > width or _num_lines(shown, SMALLEST) > MAX_QUERY_LINES
    ):
        decodes = [row for row in shown if row.query_len == 1]
        shown.remove(decodes[-1] if decodes else shown[-1])
    return shown


def _mask_header(cached: Sequence[Column], fed: Sequence[Column]) -> list[str]:
    """Returns a line that names both groups of keys and a line with the letter of each column."""
    old = "cached keys" if len(cached) >= len("cached keys") else ""
    new = "keys fed now" if len(fed) >= len("keys fed now") else "fed"
    letters = "".join(letter for letter, _ in (*cached, SEPARATOR, *fed))
    titles = f"{LABEL.format('', '')}{old:<{len(cached)}}{SEPARATOR[0]}{new}"
    return [titles, f"{LABEL.format('', 'pos')}{letters}"]


def _mask_line(
    row: RowRecord,
    position: str,
    query: int | None,
    keys: Sequence[int | str | None],
    mask: Tensor,
) -> str:
    cells = []
    for key in keys:
        if isinstance(key, str):
            cells.append(key)
        elif key is None or query is None:
            cells.append(ELIDED)
        else:
            cells.append("#" if bool(mask[query, key]) else ".")
    return f"{LABEL.format(row.request_id, position)}{''.join(cells)}  {row.request_id}"


def _left_out(
    rows: Sequence[RowRecord], shown: Sequence[RowRecord], limit: int, height: int, width: int
) -> list[str]:
    """Returns a sentence for each kind of thing that is not drawn."""
    lines = []
    for what, field, most in (
        ("cached keys", "context_len", limit),
        ("fed keys", "query_len", limit),
        ("queries", "query_len", height),
    ):
        lens = {row.request_id: getattr(row, field) for row in shown}
        counts = [f"{owner} {length - most + 1}" for owner, length in lens.items() if length > most]
        if counts:
            lines.append(f"{ELIDED} left out: {what} {', '.join(counts)}")
    hidden = [row.request_id for row in rows if row not in shown]
    if hidden:
        lines.append(f"not drawn, for want of room: {' '.join(hidden)}")
    return [
        part
        for line in lines
        for part in textwrap.wrap(line, width, initial_indent="   ", subsequent_indent="     ")
    ]


def token_row(rows: Sequence[RowRecord], width: int) -> list[str]:
    """Returns the packed row, with one letter per fed token: the sequence it belongs to."""
    limit = largest_limit(
        [row.query_len for row in rows],
        lambda n: sum(min(row.query_len, n) + 1 for row in rows) <= width - len("    [ ]"),
    )
    blocks = []
    for row in rows:
        kept = elide(row.query_len, limit)
        blocks.append("".join(ELIDED if i is None else row.request_id for i in kept))
    return textwrap.wrap(
        f"[{' '.join(blocks)}]", width, initial_indent="    ", subsequent_indent="     "
    )
