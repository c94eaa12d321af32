"""Numbers in the form that people read. An undefined one is a dash, never a zero."""

from __future__ import annotations

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


def many(amount: int, noun: str) -> str:
    """Returns a count with its noun: `1 row`, `3 rows`."""
    return f"{amount:,} {noun}" + ("" if amount == 1 else "s")


def shortened(name: str, width: int = 22) -> str:
    """Returns a name in at most `width` characters, with an ellipsis if it is cut."""
    return name if len(name) <= width else f"{name[: width - 1]}…"
