"""A benchmark file as a page of Markdown: one table for each workload and model."""

from __future__ import annotations

from collections.abc import Iterator

from batchproof.drawing.picture import Picture, standalone
from batchproof.records.markdown import header, line
from batchproof.report import words
from batchproof.report.comparison_cells import FIGURES, THROUGHPUT, row_cells
from batchproof.report.field_chart import field_chart
from batchproof.report.file_origins import origin
from batchproof.report.inputs import Source
from batchproof.report.page import engine_colours
from batchproof.report.pictures import note_of
from batchproof.report.rows import Data, is_shown

COLUMNS = ("engine", "verdict", *FIGURES)


def markdown_page(source: Source, stem: str) -> tuple[str, dict[str, str]]:
    """Returns the page, and its pictures as SVG by the names of their files, which begin with `stem`
    and lie beside it."""
    pictures: dict[str, Picture] = {}
    text = "\n".join(_lines(source, stem, pictures)) + "\n"
    note = note_of(source)
    return text, {name: standalone(each, note) for name, each in pictures.items()}


def _lines(source: Source, stem: str, pictures: dict[str, Picture]) -> Iterator[str]:
    """Yields the lines, and adds the pictures that they show."""
    colours = engine_colours([source])
    yield f"# Benchmark: {source.path.name}"
    yield ""
    for fact in origin(source).facts:
        yield f"* {fact.name}: " + (f"`{fact.text}`" if fact.is_code else fact.text or "INCOMPLETE")
    yield ""
    yield "Every token of every timed round was checked; TTFT and ITL are median / 99th percentile."
    field = field_chart(source.data, colours)
    if field is not None:
        yield from _shown(f"{stem}.svg", field, pictures)
    for comparison in source.data["comparisons"]:
        yield from _comparison(comparison, comparison["clock"])


def _shown(name: str, picture: Picture, pictures: dict[str, Picture]) -> Iterator[str]:
    pictures[name] = picture
    yield f"\n![{picture.title}]({name})"
    yield f"\n{picture.caption}"


def _comparison(comparison: Data, clock: str) -> Iterator[str]:
    workload, model, rows = comparison["workload"], comparison["model"], comparison["rows"]
    totals, slots = workload["totals"], workload["spec"]["slots"]
    yield f"\n## {workload['name']} on {model['name']} in {model['dtype']}\n"
    yield (
        f"{words.many(totals['num_requests'], 'request')} over {words.many(slots, 'slot')}, "
        f"{totals['num_prompt_tokens']:,} prompt and {totals['max_output_tokens']:,} output tokens "
        f"(`{workload['hash']}`); throughput and ratios by {words.clock_words(clock)}.\n"
    )
    columns = [f"{each} ({clock} time)" if each == THROUGHPUT else each for each in COLUMNS]
    yield from header(*columns, f"over {rows[0]['engine']}")
    for row in rows:
        cells = row_cells(row, comparison, clock) if is_shown(row) else ["-"] * (len(COLUMNS) - 1)
        yield line(row["engine"], row["verdict"], *cells)
    reasons = [f"* {row['engine']}: {row['reason']}" for row in rows if row["reason"]]
    if reasons:
        yield from ("", *reasons)
