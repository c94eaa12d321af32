"""The figures of a benchmark as text, for the terminal and for its page. INVALID rows show none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from batchproof.bench.ratios import Ratio
from batchproof.bench.result_rows import INVALID, exceeds_slots
from batchproof.records.texts import counted

COLUMNS = (
    *("engine", "verdict", "output tok/s", "ttft p50/p99", "itl p50/p99"),
    *("cores", "busy", "roof", "memory"),
)


def table(comparisons: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for comparison in comparisons:
        yield from _comparison(comparison)
        yield ""


def _comparison(comparison: Mapping[str, Any]) -> Iterator[str]:
    workload, model = comparison["workload"], comparison["model"]
    totals = workload["totals"]
    yield (
        f"{workload['name']} ({workload['hash']}) on {model['name']} in {model['dtype']}: "
        f"{totals['num_requests']} requests over {counted(workload['spec']['slots'], 'slot')}, "
        f"{totals['num_prompt_tokens']:,} prompt and {totals['max_output_tokens']:,} output tokens"
    )
    yield from _aligned([COLUMNS, *map(_cells, comparison["rows"])], num_left=2)
    for row in comparison["rows"]:
        if row["reason"]:
            yield f"{row['engine']} {row['verdict']}: {row['reason'].splitlines()[0]}"
        if row.get("memory_lack"):
            yield f"{row['engine']}: its memory is unknown: {row['memory_lack'].splitlines()[0]}"
        if exceeds_slots(row, workload["spec"]["slots"]):
            yield f"{row['engine']}: more slots than asked, {row['num_at_once']} at once; no ratio"
    for entry in comparison["ratios"]:
        words = Ratio.of(entry).words(entry["engine"], entry["over"])
        yield f"{words} ({entry['clock']} time, {entry['num_laps']} laps)"


def _aligned(lines: Sequence[Sequence[str]], num_left: int) -> Iterator[str]:
    """Yields the lines of a table, whose first `num_left` columns are flush left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            cell.ljust(width) if place < num_left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


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
        "-" if row.get("cores") is None else f"{row['cores']:.2f}",
        _percent(schedule["occupancy"]),
        _percent(roofline["share"] if roofline else None),
        "-" if row.get("peak_memory_bytes") is None else f"{row['peak_memory_bytes'] / 1e9:.2f} GB",
    )


def _pair(metrics: Mapping[str, Any], name: str) -> str:
    p50, p99 = metrics[f"median_{name}_ms"], metrics[f"p99_{name}_ms"]
    return "-" if p50 is None else f"{_short(p50)} / {_short(p99)}"


def _short(value: float) -> str:
    """Returns the value with three significant digits, or with all digits before the decimal point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
