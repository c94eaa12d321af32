"""The part of a benchmark's section about load: pictures, knees in words, and a table of all points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batchproof.bench.load import by_title
from batchproof.drawing.picture import Picture
from batchproof.report import words
from batchproof.report.load_charts import load_pictures
from batchproof.report.metrics_table import LATENCIES, unwell
from batchproof.report.rows import Data
from batchproof.report.table_values import Row, Table, TableCell

QUANTILES = ("median", "p90", "p99")
KEEPS_UP = {True: "", False: ", falls behind", None: ", too short to tell"}
NO_FIGURE = "no figure is shown, because the client was the bottleneck"


@dataclass(frozen=True, slots=True)
class LoadSweep:
    """One workload on one model at rising load, all engines side by side."""

    title: str
    unwell: Mapping[str, str]
    pictures: tuple[Picture, ...]
    lines: tuple[str, ...]
    figures: Table


def load_sweeps(entries: Sequence[Data], colours: Mapping[str, int]) -> tuple[LoadSweep, ...]:
    """Returns the sweeps in the order in which they were measured."""
    pictures = load_pictures(entries, colours)
    return tuple(
        LoadSweep(
            title,
            unwell(group),
            pictures.get(title, ()),
            tuple(f"{entry['engine']}: {entry['words']}" for entry in group if entry["points"]),
            _table(title, group),
        )
        for title, group in by_title(entries).items()
    )


def _table(title: str, group: Sequence[Data]) -> Table:
    has_limits = any(
        (point["metrics"] or {}).get("request_goodput") is not None
        for entry in group
        for point in entry["points"]
    )
    heads = [f"{name}, ms: p50 / p90 / p99" for name in LATENCIES]
    rates = ["offered requests/s", "achieved", "output tokens/s", *["goodput"] * has_limits]
    rows: list[Row] = []
    for entry in group:
        rows.append(Row(entry["engine"]))
        rows += [_row(entry, point, has_limits) for point in entry["points"]]
    head = ("load", *rates, *heads, "client's own share")
    has_gaps = any(point["saturation"] for entry in group for point in entry["points"])
    return Table(f"Figures of {title}", head, tuple(rows), (NO_FIGURE,) if has_gaps else ())


def _row(entry: Data, point: Data, has_limits: bool) -> Row:
    metrics = point["metrics"]
    name = f"{entry['kind']} {point['load']:g}"
    own = TableCell(words.share(point["client"]["own_share"]))
    if metrics is None:
        num_empty = 3 + has_limits + len(LATENCIES)
        return Row(name, (*[TableCell(words.UNDEFINED, "none", note=1)] * num_empty, own))
    mark = " (knee)" if point["load"] == entry["knee"] else ""
    behind = KEEPS_UP[point["keeps_up"]]
    texts = [
        words.number(metrics["offered_rate"]),
        words.number(metrics["achieved_rate"]) + behind,
        words.number(metrics["output_throughput"]),
        *[words.number(metrics["request_goodput"])] * has_limits,
        *(
            " / ".join(words.number(metrics[f"{quantile}_{name}_ms"]) for quantile in QUANTILES)
            for name in LATENCIES
        ),
    ]
    return Row(name + mark, (*map(TableCell, texts), own))
