"""The figures of load sweeps in the terminal. A load without figures says why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from batchproof.bench.knee import keeps_up
from batchproof.bench.load import by_title

LATENCIES = ("ttft", "itl", "tpot", "e2el")
COLUMNS = (
    *("engine", "load", "offered", "achieved req/s", "output tok/s"),
    *(f"{name} p50/p90/p99" for name in LATENCIES),
    *("goodput", "client"),
)


def load_table(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the lines for all entries, a table for each workload and model."""
    for title, group in by_title(entries).items():
        yield f"{title}:"
        yield from _table(group)
        for entry in group:
            yield f"{entry['engine']}: {entry['words']}"
        yield ""


def _table(group: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    lines = [COLUMNS, *(_cells(entry, point) for entry in group for point in entry["points"])]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        yield "  ".join([line[0].ljust(widths[0]), *cells[1:]]).rstrip()


def _cells(entry: Mapping[str, Any], point: Mapping[str, Any]) -> tuple[str, ...]:
    metrics, own = point["metrics"], f"{point['client']['own_share']:.1%}"
    mark = " knee" if point["load"] == entry["knee"] else ""
    first = (entry["engine"], f"{entry['kind']} {point['load']:g}{mark}")
    if metrics is None:
        return (*first, *["-"] * (len(COLUMNS) - 4), "saturated", own)
    behind = "" if keeps_up(metrics) else " (behind)"
    return (
        *first,
        _short(metrics["offered_rate"]),
        f"{_short(metrics['achieved_rate'])}{behind}",
        _short(metrics["output_throughput"]),
        *(_three(metrics, name) for name in LATENCIES),
        _short(metrics["request_goodput"]),
        own,
    )


def _three(metrics: Mapping[str, Any], name: str) -> str:
    if metrics[f"p99_{name}_ms"] is None:
        return "-"
    return "/".join(_short(metrics[f"{kind}_{name}_ms"]) for kind in ("median", "p90", "p99"))


def _short(value: float | None) -> str:
    """Returns the value with three significant digits, or with all digits before the decimal point."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
