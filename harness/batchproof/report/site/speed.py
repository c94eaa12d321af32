"""Benchmarks and grades of invariance as tables, each engine with the promises that it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batchproof.bench.reading import VALID
from batchproof.records.invariance import UNMEASURED, AxisRecord, EngineRecord, InvarianceRecord
from batchproof.report import words
from batchproof.report.comparison_cells import (
    FIGURES,
    THROUGHPUT,
    row_cells,
    title_of,
    why,
    workload_words,
)
from batchproof.report.file_origins import FileOrigin, origin
from batchproof.report.inputs import Source, made_of
from batchproof.report.metrics_table import VERDICTS, Notes, unwell
from batchproof.report.rows import Data, throughput
from batchproof.report.site.standing import Standings
from batchproof.report.table_values import Chip, Row, Table, TableCell

WEAKEST_FIRST = "-TESB"
GRADES = (
    ("B", "every bit of the logits is the same, although the shapes differ"),
    ("S", "every bit, where the shapes are the same; else all logits within what rounding explains"),
    ("E", "all logits within what rounding explains"),
    ("T", "all tokens, on a model whose margins rounding cannot bridge"),
    ("-", "none of these"),
    ("?", "behind a grade: no trace shows that what was varied did happen"),
)
NOTHING = TableCell(words.UNDEFINED, "none")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One workload on one model. `unwell`: the engines without figures, and why."""

    title: str
    why: str
    workload: str
    table: Table
    unwell: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BenchmarkFile:
    """One benchmark file. `has_more`: it holds cost growth, which only a report draws."""

    name: str
    about: str
    origin: FileOrigin
    comparisons: tuple[Comparison, ...]
    has_more: bool


def benchmark_file(source: Source, standings: Standings) -> BenchmarkFile:
    """Returns the section of a file. Raises `UsageError` if it is damaged."""

    def make(source: Source) -> BenchmarkFile:
        made, device = source.provenance, source.data["header"]["device"]
        name = "" if device["type"] == "cpu" else f", {device['name']}"
        return BenchmarkFile(
            source.path.name,
            f"{made.date[:10]}, {made.machine}{name}",
            origin(source),
            tuple(_comparison(each, standings) for each in source.data["comparisons"]),
            bool(source.data["growth"]),
        )

    return made_of(source, make)


def _comparison(comparison: Data, standings: Standings) -> Comparison:
    clock, rows, title = comparison["clock"], comparison["rows"], title_of(comparison)
    figures = [f"{each} ({clock})" if each == THROUGHPUT else each for each in FIGURES]
    head = ("engine", "answers", "promises", *figures, f"over {rows[0]['engine']}" if rows else "")
    lines = tuple(_line(row, comparison, clock, standings) for row in rows)
    workload = comparison["workload"]
    return Comparison(
        title, why(workload), workload_words(workload), Table(title, head, lines), unwell(rows)
    )


def _line(row: Data, comparison: Data, clock: str, standings: Standings) -> Row:
    chip = Chip(row["verdict"], VERDICTS.get(row["verdict"], "none"))
    cells = [NOTHING] * (len(FIGURES) + 1)
    if row["verdict"] == VALID and row["metrics"] is not None:
        _, *rest = row_cells(row, comparison, clock)
        cells = [_throughput(row, clock), *map(TableCell, rest)]
    return Row(row["engine"], (TableCell("", chip=chip), standings.cell(row["engine"]), *cells))


def _throughput(row: Data, clock: str) -> TableCell:
    """Returns the median round; below it, the slowest and the fastest. Only answers that were all
    right have a throughput here.
    """
    found = throughput(row, clock) if row["verdict"] == VALID else None
    if found is None:
        return NOTHING
    spread = f"{words.number(found.low)} to {words.number(found.high)}"
    return TableCell(words.number(found.typical), under=spread)


def grade_tables(record: InvarianceRecord) -> tuple[Table, ...]:
    """Returns engine x axis for each model and dtype."""
    return tuple(
        _grades(model, dtype, engines) for (model, dtype), engines in _subjects(record).items()
    )


def _subjects(record: InvarianceRecord) -> dict[tuple[str, str], list[EngineRecord]]:
    found: dict[tuple[str, str], list[EngineRecord]] = {}
    for each in record.engines:
        found.setdefault((each.model, each.dtype), []).append(each)
    return found


def _grades(model: str, dtype: str, engines: Sequence[EngineRecord]) -> Table:
    notes = Notes()
    names = tuple(dict.fromkeys(axis.axis for engine in engines for axis in engine.axes))
    rows = []
    for engine in engines:
        axes = {each.axis: each for each in engine.axes}
        rows.append(Row(engine.engine, tuple(_grade(axes.get(name), engine, notes) for name in names)))
    return Table(f"{model} in {dtype}", ("engine", *names), tuple(rows), notes.listed())


def _grade(axis: AxisRecord | None, engine: EngineRecord, notes: Notes) -> TableCell:
    if axis is None or axis.grade == UNMEASURED:
        reason = axis.reason if axis else engine.refusal or "not measured"
        return TableCell(words.UNDEFINED, "none", note=notes.number(reason))
    worst = f"{axis.worst:.2g} E" if axis.worst else ""
    return TableCell(f"{axis.grade}{'?' * (axis.evidence == 'not shown')}", under=worst)


def widest(sources: Sequence[Source]) -> Source | None:
    """Returns the file that compares most engines, the first of those; None without a file."""
    return max(sources, key=lambda each: len(made_of(each, _engines)), default=None)


def side_by_side(
    source: Source | None, records: Sequence[InvarianceRecord], standings: Standings
) -> Table | None:
    """Returns promises, grades by dtype and throughput of each engine. None without any engine."""
    throughputs = made_of(source, _throughputs) if source else {}
    weakest = _weakest(records[0]) if records else {}
    graded = [name for engines in weakest.values() for name in engines]
    names = dict.fromkeys([*(made_of(source, _engines) if source else ()), *graded])
    head = ("engine", "promises", *(f"grades, {dtype}" for dtype in weakest), *throughputs)
    rows = [
        Row(
            name,
            (
                standings.cell(name),
                *(_counted(engines.get(name, {})) for engines in weakest.values()),
                *(cells.get(name, NOTHING) for cells in throughputs.values()),
            ),
        )
        for name in names
    ]
    return Table("Promises, grades and speed side by side", head, tuple(rows)) if rows else None


def _engines(source: Source) -> list[str]:
    rows = (row for each in source.data["comparisons"] for row in each["rows"])
    return list(dict.fromkeys(row["engine"] for row in rows))


def _throughputs(source: Source) -> dict[str, dict[str, TableCell]]:
    """Returns the throughput of each engine by comparison."""
    return {
        f"{each['workload']['name']}, {each['model']['name']} {each['model']['dtype']}": {
            row["engine"]: _throughput(row, each["clock"]) for row in each["rows"]
        }
        for each in source.data["comparisons"]
    }


def _weakest(record: InvarianceRecord) -> dict[str, dict[str, dict[str, str]]]:
    """Returns by dtype, engine and axis the weakest grade over all models; unmeasured ones are left
    out.
    """
    found: dict[str, dict[str, dict[str, str]]] = {}
    for engine in record.engines:
        grades = found.setdefault(engine.dtype, {}).setdefault(engine.engine, {})
        for axis in engine.axes:
            if axis.grade != UNMEASURED:
                so_far = grades.get(axis.axis, axis.grade)
                grades[axis.axis] = min(so_far, axis.grade, key=WEAKEST_FIRST.index)
    return found


def _counted(grades: Mapping[str, str]) -> TableCell:
    """Returns the number of axes by grade, the strongest first."""
    count = Counter(grades.values())
    counts = [f"{count[letter]} {letter}" for letter in reversed(WEAKEST_FIRST) if count[letter]]
    return TableCell(", ".join(counts)) if counts else NOTHING
