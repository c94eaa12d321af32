"""What the templates print besides text: marks, tables and facts."""

from __future__ import annotations

from dataclasses import dataclass

UNDEFINED = "-"


def number(value: float | None) -> str:
    """Returns about three significant digits: `1,834`, `12.3`, `0.0456`."""
    if value is None:
        return UNDEFINED
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def share(value: float | None) -> str:
    """Returns a share of 1 in percent."""
    if value is None:
        return UNDEFINED
    percent = 100 * value
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.2g} %"


@dataclass(frozen=True, slots=True)
class Chip:
    """A verdict that is readable without its colour; `kind`: good, bad, warn or none."""

    word: str
    kind: str


@dataclass(frozen=True, slots=True)
class TableCell:
    """One cell. `under` is a smaller line below the text; `title` is shown when the mouse rests on
    the cell.
    """

    text: str
    kind: str = ""  # as of a chip; empty for a plain cell
    title: str = ""
    chip: Chip | None = None
    href: str = ""
    under: str = ""


NOTHING = TableCell(UNDEFINED, "none")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: its heading and its cells."""

    head: str
    cells: tuple[TableCell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `head` names all columns, including that of the row heads."""

    label: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and its value."""

    name: str
    text: str
    is_code: bool = False
