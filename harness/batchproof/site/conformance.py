"""A conformance table of `pytest --table=FILE`, engine x promise."""

from __future__ import annotations

from dataclasses import dataclass

from batchproof.records.table import ConformanceTable, PromiseCell, Totals
from batchproof.requirements.promises import Promise
from batchproof.site.inputs import InputFile
from batchproof.site.tables import NOTHING, Chip, Row, Table, TableCell
from batchproof.site.words import many


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
