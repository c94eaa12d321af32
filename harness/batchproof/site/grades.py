"""Grades of invariance as tables, engine x axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from batchproof.records.invariance import UNMEASURED, AxisRecord, EngineRecord, InvarianceRecord
from batchproof.records.table import ConformanceTable, PromiseCell, Totals
from batchproof.requirements.promises import Promise
from batchproof.site.inputs import InputFile
from batchproof.site.tables import NOTHING, UNDEFINED, Chip, Row, Table, TableCell, many

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


@dataclass(frozen=True, slots=True)
class Conformance:
    """What is shown of a table. `totals` holds a line for each engine."""

    name: str
    chip: Chip
    about: str
    table: Table
    totals: tuple[str, ...]


def conformance(file: InputFile[ConformanceTable]) -> Conformance:
    table = file.record
    checked = {promise_id for cells in table.cells.values() for promise_id in cells}
    rows = tuple(
        Row(str(promise), tuple(_cell(table.cells.get(e, {}).get(promise.id)) for e in table.engines))
        for promise in Promise
        if promise.id in checked
    )
    subject = f"{', '.join(table.models)}; {table.device}, {table.dtype}"
    return Conformance(
        file.path.name,
        _chip(table),
        f"On {subject}; {file.made.date[:10]}, {file.made.machine}.",
        Table(f"Conformance in {file.path.name}", ("promise", *table.engines), rows),
        tuple(f"{e}: {_compared(table.totals.get(e, Totals()))}" for e in table.engines),
    )


def _chip(table: ConformanceTable) -> Chip:
    """A run that compared nothing, or that pytest did not end well, has failed."""
    has_compared = any(each.num_requests for each in table.totals.values())
    has_failed = any(cell.failed for cells in table.cells.values() for cell in cells.values())
    if has_failed or table.exit_status != 0 or not has_compared:
        return Chip("FAIL", "bad")
    return Chip("PASS", "good") if table.is_complete else Chip("INCOMPLETE", "warn")


def _cell(cell: PromiseCell | None) -> TableCell:
    if cell is None:
        return NOTHING
    kind = "bad" if cell.failed else "warn" if cell.known else "" if cell.passed else "none"
    return TableCell(cell.text, kind, f"{many(cell.passed, 'test')} passed, {cell.failed} failed")


def _compared(totals: Totals) -> str:
    return (
        f"{many(totals.num_requests, 'answer')} with {many(totals.num_steps, 'token')} compared, "
        f"{many(totals.num_near_ties, 'near-tie')}"
    )
