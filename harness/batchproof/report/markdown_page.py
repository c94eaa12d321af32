"""A benchmark file as a page of Markdown: one table for each workload and model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from batchproof.bench.ratios import Ratio
from batchproof.bench.reading import clock_of, exceeds_slots
from batchproof.report import words
from batchproof.report.field_chart import CAPTION
from batchproof.report.file_origins import origin
from batchproof.report.inputs import Source
from batchproof.report.metrics_table import latency, pair, roofline
from batchproof.report.rows import Data, is_shown, throughput

COLUMNS = ("engine", "verdict", "output tok/s", "TTFT ms", "ITL ms", "cores", "at once", "roofline")


def markdown_page(source: Source, picture: Path | None) -> str:
    """Returns the page. `picture` is shown at its top, by its name beside the page."""
    return "\n".join(_lines(source, picture)) + "\n"


def _lines(source: Source, picture: Path | None) -> Iterator[str]:
    yield f"# Benchmark: {source.path.name}"
    yield ""
    for fact in origin(source).facts:
        yield f"* {fact.name}: " + (f"`{fact.text}`" if fact.is_code else fact.text or "INCOMPLETE")
    yield ""
    yield "Every token of every timed round was checked; TTFT and ITL are median / 99th percentile."
    if picture is not None:
        yield f"\n![Throughput of every engine on every workload]({picture.name})"
        yield f"\n{CAPTION}"
    for comparison in source.data["comparisons"]:
        yield from _comparison(comparison, clock_of(source.data, comparison))


def _comparison(comparison: Data, clock: str) -> Iterator[str]:
    workload, model, rows = comparison["workload"], comparison["model"], comparison["rows"]
    totals, slots = workload["totals"], workload["spec"]["slots"]
    yield f"\n## {workload['name']} on {model['name']} in {model['dtype']}\n"
    yield (
        f"{words.many(totals['num_requests'], 'request')} over {words.many(slots, 'slot')}, "
        f"{totals['num_prompt_tokens']:,} prompt and {totals['max_output_tokens']:,} output tokens "
        f"(`{workload['hash']}`); throughput and ratios by {words.clock_words(clock)}.\n"
    )
    first = rows[0]["engine"]
    yield "| " + " | ".join((*COLUMNS, f"over {first}")) + " |"
    yield "|" + " --- |" * (len(COLUMNS) + 1)
    over = {each["engine"]: each for each in comparison["ratios"] if each["over"] == first}
    for row in rows:
        cells, compared = ["-"] * (len(COLUMNS) - 2), "-"
        if is_shown(row):
            cells = _cells(row, clock)
            compared = Ratio.of(over[row["engine"]]).figures() if row["engine"] in over else "-"
            compared = "more slots than asked" if exceeds_slots(row, slots) else compared
        name = row["engine"].replace("|", "\\|")
        yield "| " + " | ".join((name, row["verdict"], *cells, compared)) + " |"
    reasons = [f"* {row['engine']}: {row['reason']}" for row in rows if row["reason"]]
    if reasons:
        yield from ("", *reasons)


def _cells(row: Data, clock: str) -> list[str]:
    found = throughput(row, clock)
    return [
        words.number(found.typical if found else None),
        *(pair(latency(name)(row)) for name in ("ttft", "itl")),
        words.number(row.get("cores")),
        words.count(row.get("num_at_once")),
        words.share(roofline("share")(row)),
    ]
