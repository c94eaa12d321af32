"""What the templates print besides text: marks and tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chip:
    """A verdict that is readable without its colour; `kind`: good, bad, warn or none."""

    word: str
    kind: str


@dataclass(frozen=True, slots=True)
class TableCell:
    """One cell. `under` is a smaller line below the text; `note` is the number of a note below the
    table; `bar` is a share drawn as a bar, in percent.
    """

    text: str
    kind: str = ""  # as of a chip; empty for a plain cell
    title: str = ""
    note: int | None = None
    chip: Chip | None = None
    bar: float | None = None
    href: str = ""
    under: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table, or the heading of a group of lines if it has no cells."""

    head: str
    cells: tuple[TableCell, ...] = ()
    href: str = ""  # of the head


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `head` names all columns, including that of the row heads; notes count from 1."""

    label: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
