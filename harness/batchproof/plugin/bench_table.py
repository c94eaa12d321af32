"""The figures of a benchmark run in the terminal. Rows that are not VALID show none; a load without
figures says why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from batchproof.bench.load import by_title
from batchproof.bench.ratios import Ratio
from batchproof.bench.reading import INVALID, exceeds_slots

COLUMNS = (
    *("engine", "verdict", "output tok/s", "ttft p50/p99", "itl p50/p99"),
    *("cores", "busy", "waste", "roof"),
)
KEEPS_UP = {True: "", False: " (behind)", None: " (too short)"}
LATENCIES = ("ttft", "itl", "tpot", "e2el")
LOAD_COLUMNS = (
    *("load", "offered", "achieved req/s", "output tok/s"),
    *(f"{name} p50/p90/p99" for name in LATENCIES),
    *("goodput", "client"),
)


def table(
    comparisons: Iterable[Mapping[str, Any]], growth: Iterable[Mapping[str, Any]]
) -> Iterator[str]:
    """Yields the lines for all comparisons and growth entries."""
    for comparison in comparisons:
        yield from _comparison(comparison)
        yield ""
    for entry in growth:
        yield f"{entry['engine']}, {entry['axis']}: {entry['words']}"


def _comparison(comparison: Mapping[str, Any]) -> Iterator[str]:
    workload, model = comparison["workload"], comparison["model"]
    totals, bound = workload["totals"], workload["max_speedup_over_static"]
    yield (
        f"{workload['name']} ({workload['hash']}) on {model['name']} in {model['dtype']}: "
        f"{totals['num_requests']} requests over {_counted(workload['spec']['slots'], 'slot')}, "
        f"{totals['num_prompt_tokens']:,} prompt and {totals['max_output_tokens']:,} output tokens"
    )
    yield (
        f"most to gain over static waves: {bound['by_steps']:.2f}x if each step costs the same, "
        f"{bound['by_rows']:.2f}x if each computed token does"
    )
    yield from aligned([COLUMNS, *map(_cells, comparison["rows"])], num_left=2)
    for row in comparison["rows"]:
        if row["reason"]:
            yield f"{row['engine']} {row['verdict']}: {row['reason']}"
        if exceeds_slots(row, workload["spec"]["slots"]):
            yield f"{row['engine']}: more slots than asked, {row['num_at_once']} at once; no ratio"
        goodput = (row["metrics"] or {}).get("request_goodput")
        if goodput is not None:
            share = row["metrics"]["goodput_share"]
            yield f"{row['engine']}: goodput {goodput:.3g} requests/s, {share:.0%} within all limits"
    for entry in comparison["ratios"]:
        words = Ratio.of(entry).words(entry["engine"], entry["over"])
        yield f"{words} ({entry['clock']} time, {entry['num_laps']} laps)"


def aligned(lines: Sequence[Sequence[str]], num_left: int) -> Iterator[str]:
    """Yields the lines of a table, whose first `num_left` columns are flush left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            cell.ljust(width) if place < num_left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    metrics, schedule = row["metrics"], row["schedule"]
    if row["verdict"] == INVALID or metrics is None:
        return (row["engine"], row["verdict"], *["-"] * (len(COLUMNS) - 2))
    roofline = schedule["roofline"]
    return (
        row["engine"],
        row["verdict"],
        f"{metrics['output_throughput']:,.0f}",
        _pair(metrics, "ttft"),
        _pair(metrics, "itl"),
        "-" if row["cores"] is None else f"{row['cores']:.2f}",
        _percent(schedule["occupancy"]),
        _percent(schedule["padding_waste"]),
        _percent(roofline["share"] if roofline else None),
    )


def _pair(metrics: Mapping[str, Any], name: str) -> str:
    p50, p99 = metrics[f"median_{name}_ms"], metrics[f"p99_{name}_ms"]
    return "-" if p50 is None else f"{short(p50)} / {short(p99)}"


def short(value: float | None) -> str:
    """Returns the value with three significant digits, or with all digits before the decimal point; a
    dash for none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def load_table(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the lines for all entries, a table for each workload and model."""
    for title, group in by_title(entries).items():
        yield f"{title}, latencies in ms:"
        yield from _load_lines(group)
        yield ""


def _load_lines(group: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the heads, and for each engine its knee in words and a line for each load."""
    points = [_load_cells(entry, point) for entry in group for point in entry["points"]]
    lines = (f"  {line}" for line in aligned([LOAD_COLUMNS, *points], num_left=1))
    yield next(lines)
    for entry in group:
        yield f"{entry['engine']}: {entry['words']}"
        yield from islice(lines, len(entry["points"]))


def _load_cells(entry: Mapping[str, Any], point: Mapping[str, Any]) -> tuple[str, ...]:
    metrics, own = point["metrics"], f"{point['client']['own_share']:.1%}"
    mark = " knee" if point["load"] == entry["knee"] else ""
    load = f"{entry['kind']} {point['load']:g}{mark}"
    if metrics is None:
        return (load, *["-"] * (len(LOAD_COLUMNS) - 3), "saturated", own)
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
