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
        lambda n: _grid_width(shown, n) <= width,
    )
    keys = _key_columns(rows, shown, limit)
    lines = _mask_header(shown, limit, keys)
    height = largest_limit(
        [row.query_len for row in shown],
        lambda n: _num_lines(shown, n) <= MAX_QUERY_LINES,
    )
    first = 0
    for row in rows:
        for offset in elide(row.query_len, height) if row in shown else ():
            query = None if offset is None else first + offset
            position = ELIDED if offset is None else str(row.context_len + offset)
            lines.append(_mask_line(row, position, query, keys, mask))
        first += row.query_len
    return [*lines, *_left_out(rows, shown, limit, height, width)]


def _grid_width(rows: Sequence[RowRecord], limit: int) -> int:
    contexts = [min(row.context_len, limit) for row in rows if row.context_len]
    fed = [min(row.query_len, limit) for row in rows]
    gaps = max(len(contexts) - 1, 0) + len(" | ") + len(fed) - 1
    return len(LABEL.format("", "")) + sum(contexts) + sum(fed) + gaps + len("  A")


def _num_lines(rows: Sequence[RowRecord], limit: int) -> int:
    return sum(min(row.query_len, limit) for row in rows)


def _rows_that_fit(rows: Sequence[RowRecord], width: int) -> list[RowRecord]:
    """Returns all rows, or leaves out the last decodes if even elided ones are
    too many for the grid.
    """
    shown = list(rows)
    while len(shown) > 1 and (
        _grid_width(shown, SMALLEST) > width or _num_lines(shown, SMALLEST) > MAX_QUERY_LINES
    ):
        decodes = [row for row in shown if row.query_len == 1]
        shown.remove(decodes[-1] if decodes else shown[-1])
    return shown


def _key_columns(
    rows: Sequence[RowRecord], shown: Sequence[RowRecord], limit: int
) -> list[int | str | None]:
    """Returns the columns of the grid: a key's index in the mask, None for elided ones, or a
    separator.
    """
    contexts: list[list[int | str | None]] = []
    fed: list[list[int | str | None]] = []
    first_context, first_fed = 0, sum(row.context_len for row in rows)
    for row in rows:
        if row in shown:
            contexts.append([*elide(row.context_len, limit, first_context)])
            fed.append([*elide(row.query_len, limit, first_fed)])
        first_context += row.context_len
        first_fed += row.query_len
    return [*_joined([block for block in contexts if block]), " | ", *_joined(fed)]


def _joined(blocks: Sequence[list[int | str | None]]) -> list[int | str | None]:
    columns: list[int | str | None] = []
    for index, block in enumerate(blocks):
        columns += ([" "] if index else []) + block
    return columns


def _mask_header(rows: Sequence[RowRecord], limit: int, keys: Sequence[int | str | None]) -> list[str]:
    """Returns a line that names both groups of keys and a line with the letter of each column."""
    contexts = " ".join(row.request_id * min(row.context_len, limit) for row in rows if row.context_len)
    fed = " ".join(row.request_id * min(row.query_len, limit) for row in rows)
    margin = LABEL.format("", "")
    assert len(contexts) == keys.index(" | "), "header and grid have the same columns"
    cached = "cached keys" if len(contexts) >= len("cached keys") else ""
    now = "keys fed now" if len(fed) >= len("keys fed now") else "fed"
    titles = f"{margin}{cached:<{len(contexts)}} | {now}"
    return [titles, f"{LABEL.format('', 'pos')}{contexts} | {fed}"]


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
    contexts = [
        (row.request_id, row.context_len - limit + 1) for row in shown if row.context_len > limit
    ]
    fed = [(row.request_id, row.query_len - limit + 1) for row in shown if row.query_len > limit]
    queries = [(row.request_id, row.query_len - height + 1) for row in shown if row.query_len > height]
    lines = [
        f"{ELIDED} left out: {what} " + ", ".join(f"{owner} {count}" for owner, count in counts)
        for what, counts in (("cached keys", contexts), ("fed keys", fed), ("queries", queries))
        if counts
    ]
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
