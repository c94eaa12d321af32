"""Grades of invariance as tables, engine x axis."""

from __future__ import annotations

from collections.abc import Iterator

from batchproof.records.invariance import UNMEASURED, AxisRecord, EngineRecord, InvarianceRecord
from batchproof.site.tables import UNDEFINED, Row, Table, TableCell

MEANINGS = (
    ("B", "every bit of the logits is the same, although the shapes differ"),
    ("S", "every bit, where the shapes are the same; else all logits within what rounding explains"),
    ("E", "all logits within what rounding explains"),
    ("T", "all tokens, on a model whose margins rounding cannot bridge"),
    ("-", "none of these"),
    ("?", "behind a grade: no trace shows that what was varied did happen"),
)


def grade_tables(record: InvarianceRecord) -> Iterator[Table]:
    """Yields a table for each model and dtype. A note says why an axis has no grade."""
    for model, dtype in dict.fromkeys((each.model, each.dtype) for each in record.engines):
        engines = [each for each in record.engines if (each.model, each.dtype) == (model, dtype)]
        names = tuple(dict.fromkeys(axis.axis for engine in engines for axis in engine.axes))
        notes: dict[str, int] = {}
        rows = tuple(_row(engine, names, notes) for engine in engines)
        yield Table(f"{model} in {dtype}", ("engine", *names), rows, tuple(notes))


def _row(engine: EngineRecord, names: tuple[str, ...], notes: dict[str, int]) -> Row:
    axes = {each.axis: each for each in engine.axes}
    return Row(engine.engine, tuple(_grade(axes.get(name), engine, notes) for name in names))


def _grade(axis: AxisRecord | None, engine: EngineRecord, notes: dict[str, int]) -> TableCell:
    """Returns the cell; adds the reason to `notes`, with its number, if there is no grade."""
    if axis is None or axis.grade == UNMEASURED:
        reason = axis.reason if axis else engine.refusal or "not measured"
        return TableCell(UNDEFINED, "none", note=notes.setdefault(reason, len(notes) + 1))
    worst = f"{axis.worst:.2g} E" if axis.worst else ""
    return TableCell(f"{axis.grade}{'?' * (axis.evidence == 'not shown')}", under=worst)
