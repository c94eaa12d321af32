"""`batchproof plot RESULT.json... PICTURE`: the ratios of benchmark files as a picture.

Each comparison is a panel: the speed of every engine relative to the first one that has figures, with
its 95 % interval, and its peak memory where that was measured. It needs matplotlib, the optional
dependency `plots`.
"""

import argparse
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from batchproof.bench.benchmark_run import SCHEMA
from batchproof.bench.ratios import Ratio
from batchproof.bench.result_rows import exceeds_slots, is_compared
from batchproof.errors import UsageError
from batchproof.records.file_kinds import parsed

Comparison = Mapping[str, Any]
ENDINGS = (".png", ".svg", ".pdf")
SPEEDS = {"process": "output_tokens_per_process_s", "wall": "output_throughput"}  # by the clock
COLUMNS = 2  # of panels
WIDTH, BAR, MARGIN = 7.0, 0.36, 1.0  # inches: of a panel, of the place of a bar, around the bars
BEYOND = 1.75  # the right end of a panel over its longest whisker: words stand there


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="RESULT", nargs="+", help="result files of benchmarks")
    parser.add_argument("picture", metavar="PICTURE", help=f"the file to write: {', '.join(ENDINGS)}")


def run(arguments: argparse.Namespace) -> int:
    """Writes the picture and returns 0. Raises `UsageError` for a file that is no benchmark, a picture
    that cannot be written, or without matplotlib."""
    picture = Path(arguments.picture)
    if picture.suffix.lower() not in ENDINGS:
        raise UsageError(f"PICTURE {arguments.picture!r} must end in {', '.join(ENDINGS)}")
    comparisons = [(name, each) for name in arguments.results for each in _comparisons(name)]
    if not comparisons:
        raise UsageError(f"{arguments.results[0]!r} holds no comparison: the run was stopped before")
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise UsageError("`batchproof plot` needs matplotlib: pip install matplotlib") from None
    num_rows = ceil(len(comparisons) / COLUMNS)
    num_columns = min(COLUMNS, len(comparisons))
    figure = figures.Figure(layout="constrained")
    panels = [*figure.subplots(num_rows, num_columns, squeeze=False).flat]
    for panel, (name, comparison) in zip(panels, comparisons, strict=False):
        with _naming(name):
            _draw(panel, comparison)
    for panel in panels[len(comparisons) :]:
        panel.set_axis_off()
    height = MARGIN + BAR * max(len(each["rows"]) for _, each in comparisons)
    figure.set_size_inches(WIDTH * num_columns, height * num_rows)
    try:
        figure.savefig(picture, dpi=110)
    except OSError as error:
        raise UsageError(f"PICTURE {str(picture)!r} cannot be written: {error.strerror}") from None
    print(f"written: {picture}")
    return 0


def _comparisons(name: str) -> Sequence[Comparison]:
    document = parsed(Path(name))
    schema = document.get("schema") if isinstance(document, Mapping) else None
    if not isinstance(document, Mapping) or schema != SCHEMA:
        raise UsageError(f"{name!r} is no benchmark: its schema is {schema!r}, not {SCHEMA!r}")
    if "footer" not in document:
        print(f"{name}: the run was stopped; what it had compared is drawn", file=sys.stderr)
    with _naming(name):
        return [dict(each) for each in document["comparisons"]]


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Says which file lacks a value, or has one of another kind."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"result file {name!r} is damaged: {type(error).__name__}: {error}") from None


def _draw(panel: Any, comparison: Comparison) -> None:
    """Draws the rows of a comparison, the first on top. What has no ratio has words instead."""
    workload, model, rows = comparison["workload"], comparison["model"], comparison["rows"]
    slots = workload["spec"]["slots"]
    over = next((row["engine"] for row in rows if is_compared(row, slots)), None)
    ratios = {each["engine"]: Ratio.of(each) for each in comparison["ratios"] if each["over"] == over}
    ratios[over] = Ratio(1.0, None, None, 0)
    shown = [ratios.get(row["engine"], Ratio(0.0, None, None, 0)) for row in rows]
    lengths = [each.ratio for each in shown]
    whiskers = [
        [each.ratio - (each.low or each.ratio) for each in shown],
        [(each.high or each.ratio) - each.ratio for each in shown],
    ]
    colours = ["tab:blue" if row["engine"] == over else "tab:gray" for row in rows]
    bars = panel.barh(range(len(rows)), lengths, xerr=whiskers, color=colours)
    panel.bar_label(bars, [*map(partial(_words, comparison), rows, lengths)], padding=4)
    names = [row["engine"].replace("?", "\n?", 1) for row in rows]
    panel.set_yticks(range(len(rows)), names, fontsize="small", parse_math=False)
    panel.invert_yaxis()
    panel.axvline(1, color="tab:blue", linewidth=0.8)
    panel.set_xlim(0, max(each.high or each.ratio for each in shown) * BEYOND or 1)
    compared = f"output tokens per second of {comparison['clock']} time, relative to {over}"
    about = f"{workload['name']} on {model['name']} in {model['dtype']}"
    title = about if over is None else f"{about}\n{compared}"
    panel.set_title(title, size="small", parse_math=False)


def _words(comparison: Comparison, row: Mapping[str, Any], ratio: float) -> str:
    has_more = exceeds_slots(row, comparison["workload"]["spec"]["slots"])
    words = f"{ratio:.2f}x" if ratio else "more slots than asked" if has_more else row["verdict"]
    if ratio == 1:
        words = f"{row['metrics'][SPEEDS[comparison['clock']]]:,.0f} tok/s"
    peak = row.get("peak_memory_bytes")
    return words if peak is None else f"{words}, {peak / 1e9:.2f} GB"
