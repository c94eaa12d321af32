"""A benchmark file as a page of Markdown with two pictures, to lie beside the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.records.benchmark import BenchmarkRecord
from batchproof.records.file_kinds import replace_text
from batchproof.records.markdown import header, line
from batchproof.site.benchmarks import Benchmark, Comparison, benchmark
from batchproof.site.inputs import read_input


def write_markdown(path: Path) -> list[Path]:
    """Writes the page and its pictures beside a benchmark file. Raises `UsageError` for another file.

    Returns the paths that were written.
    """
    file = read_input(path)
    if file is None or not isinstance(file.record, BenchmarkRecord):
        raise UsageError(f"--markdown '{path}' is no benchmark file")
    shown = benchmark(file)
    charts = {"": shown.throughputs, "-ratios": shown.ratios}
    pictures = {path.with_name(f"{path.stem}{end}.svg"): each for end, each in charts.items() if each}
    lines = [*_head(shown)]
    for picture, chart in pictures.items():
        replace_text(picture, chart.standalone(f"{shown.about}, {shown.name}"))
        lines += ["", f"![{chart.title}]({picture.name})", "", chart.caption]
    lines += [each for comparison in shown.comparisons for each in _comparison(comparison)]
    page = path.with_suffix(".md")
    replace_text(page, "\n".join(lines) + "\n")
    return [page, *pictures]


def _head(shown: Benchmark) -> Iterator[str]:
    yield f"# Benchmark: {shown.name}"
    yield ""
    yield from (
        f"* {each.name}: `{each.text}`" if each.is_code else f"* {each.name}: {each.text}"
        for each in shown.facts
    )
    yield ""
    yield "Every token of every timed round was checked; TTFT and ITL are median / 99th percentile."


def _comparison(each: Comparison) -> Iterator[str]:
    yield f"\n## {each.title}\n"
    yield f"{each.size}\n"
    yield from header(*each.table.head)
    yield from (line(row.head, *(cell.text for cell in row.cells)) for row in each.table.rows)
    if each.reasons:
        yield ""
        yield from (f"* {engine}: {reason}" for engine, reason in each.reasons.items())
