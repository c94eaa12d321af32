"""Conformance tables, engine x promise."""

from __future__ import annotations

from dataclasses import dataclass

from batchproof.report import words
from batchproof.report.inputs import Source
from batchproof.report.rows import Data
from batchproof.report.table_values import Row, Table, TableCell
from batchproof.requirements.promises import Promise

TOTALS = {
    "workloads": "num_workloads",
    "answers": "num_requests",
    "tokens": "num_steps",
    "near-ties": "num_near_ties",
}


@dataclass(frozen=True, slots=True)
class Conformance:
    """The section of a conformance table."""

    about: str
    table: Table
    totals: tuple[str, ...]  # a line an engine


def conformance(source: Source) -> Conformance:
    data = source.data
    engines, cells = data["engines"], data["cells"]
    rows = tuple(
        Row(
            f"{promise.id} {promise.title}",
            tuple(_cell(cells.get(engine, {}).get(promise.id)) for engine in engines),
        )
        for promise in Promise
        if any(promise.id in cells.get(engine, {}) for engine in engines)
    )
    models = ", ".join(data.get("models", []))
    return Conformance(
        f"On {models}; {data.get('device', '?')}, {data.get('dtype', '?')}.",
        Table("Conformance: engine by promise", ("promise", *engines), rows),
        tuple(_total(engine, data["totals"].get(engine, {})) for engine in engines),
    )


def _cell(cell: Data | None) -> TableCell:
    if cell is None:
        return TableCell(words.UNDEFINED, "none")
    is_known = cell.get("known") and not cell.get("failed")
    kind = "bad" if cell.get("failed") else "warn" if is_known else "" if cell.get("passed") else "none"
    counts = {key: value for key, value in cell.items() if isinstance(value, int) and value}
    title = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in counts.items())
    return TableCell(cell["text"], kind, title)


def _total(engine: str, totals: Data) -> str:
    counts = ", ".join(f"{totals.get(key, 0):,} {kind}" for kind, key in TOTALS.items())
    return f"{engine}: {counts}"


def num_failed(source: Source) -> int:
    return sum(cell.get("failed", 0) for row in source.data["cells"].values() for cell in row.values())
