"""The figures of load sweeps in the terminal. A load without figures says why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from batchproof.bench.load import by_title
from batchproof.plugin.bench_table import aligned, short

KEEPS_UP = {True: "", False: " (behind)", None: " (too short)"}
LATENCIES = ("ttft", "itl", "tpot", "e2el")
COLUMNS = (
    *("load", "offered", "achieved req/s", "output tok/s"),
    *(f"{name} p50/p90/p99" for name in LATENCIES),
    *("goodput", "client"),
)


def load_table(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the lines for all entries, a table for each workload and model."""
    for title, group in by_title(entries).items():
        yield f"{title}, latencies in ms:"
        yield from _table(group)
        yield ""


def _table(group: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the heads, and for each engine its knee in words and a line for each load."""
    points = [_cells(entry, point) for entry in group for point in entry["points"]]
    lines = (f"  {line}" for line in aligned([COLUMNS, *points], num_left=1))
    yield next(lines)
    for entry in group:
        yield f"{entry['engine']}: {entry['words']}"
        yield from islice(lines, len(entry["points"]))


def _cells(entry: Mapping[str, Any], point: Mapping[str, Any]) -> tuple[str, ...]:
    metrics, own = point["metrics"], f"{point['client']['own_share']:.1%}"
    mark = " knee" if point["load"] == entry["knee"] else ""
    load = f"{entry['kind']} {point['load']:g}{mark}"
    if metrics is None:
        return (load, *["-"] * (len(COLUMNS) - 3), "saturated", own)
    behind = KEEPS_UP[point["keeps_up"]]
    return (
        load,
        short(metrics["offered_rate"]),
        f"{short(metrics['achieved_rate'])}{behind}",
        short(metrics["output_throughput"]),
        *(_three(metrics, name) for name in LATENCIES),
        short(metrics["request_goodput"]),
        own,
    )


def _three(metrics: Mapping[str, Any], name: str) -> str:
    if metrics[f"p99_{name}_ms"] is None:
        return "-"
    return "/".join(short(metrics[f"{kind}_{name}_ms"]) for kind in ("median", "p90", "p99"))
