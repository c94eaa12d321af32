"""Throughput as bars: rounds as whiskers, and a mark for what the hardware allows."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from batchproof.bench.reading import VALID
from batchproof.report.canvas import (
    FAINT,
    INK,
    Picture,
    colour,
    draw,
    grid,
    series,
)
from batchproof.report.rows import Data, Throughput, throughput
from batchproof.report.words import (
    clock_words,
    number,
    share,
    shortened,
)

FARTHEST = 3.0  # a roofline beyond so many times the longest bar is told in words alone
BAR, MARK = 0.5, 0.36  # height of a bar, half the height of a mark


def throughput_bars(comparison: Data, clock: str, colours: Mapping[str, int]) -> Picture:
    rows = comparison["rows"]
    found = [throughput(row, clock) for row in rows]
    longest = max((each.high for each in found if each), default=1.0)
    near = [
        each.roofline
        for each in found
        if each and each.roofline and each.roofline <= FARTHEST * longest
    ]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_xlim(0, 1.04 * max([longest, *near]))
        for place, (row, each) in enumerate(zip(rows, found, strict=True)):
            _row(axes, place, row, each, colours[row["engine"]])
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.set_yticks([])
        axes.spines["left"].set_color(FAINT)
        grid(axes, "x")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
        axes.set_xlabel(f"output tokens per second of {clock_words(clock)}")

    name, model = comparison["workload"]["name"], comparison["model"]["name"]
    caption = (
        "Longer is faster. A bar is the median round, its whisker spans the slowest to the fastest. "
    )
    marked = [each for each in found if each and each.roofline]
    if marked:
        caption += (
            "The upright mark, or the arrow where it lies beyond the edge, is the roofline: what the "
            "memory bandwidth and the matrix rate measured in the same run allow for this schedule."
        )
    if any(each.roofline and each.typical > each.roofline for each in marked):
        caption += " A model that stays in the processor's caches can pass it."
    return draw(f"Throughput: {name}, model {model}", caption, (450, 58 + 42 * len(rows)), paint)


def _row(axes: Axes, place: int, row: Data, found: Throughput | None, index: int) -> None:
    if found is None:
        _left(axes, place, shortened(row["engine"], 20), 0, "center", INK)
        words = f"  {row['verdict']}: no throughput is shown"
        axes.text(0, place, words, va="center", color=colour("bad"), fontweight="bold")
        return
    _left(axes, place, shortened(row["engine"], 20), 1.5, "bottom", INK)
    is_valid = row["verdict"] == VALID
    axes.barh(
        place,
        found.typical,
        BAR,
        color=series(index) if is_valid else colour("idle"),
        edgecolor=series(index),
        linewidth=1.2,
        hatch=None if is_valid else "///",
    )
    axes.errorbar(
        found.typical,
        place,
        xerr=[[found.typical - found.low], [found.high - found.typical]],
        color=INK,
        capsize=3.5,
        elinewidth=1.3,
        capthick=1.3,
    )
    words = (
        f"{number(found.typical)} /s" if is_valid else f"{number(found.typical)} /s, {row['verdict']}"
    )
    _left(axes, place, words, -1.5, "top", FAINT)
    if found.roofline is not None:
        _roofline(axes, place, found.roofline, found.typical / found.roofline)


def _roofline(axes: Axes, place: int, most: float, reached: float) -> None:
    _, edge = axes.get_xlim()
    if most <= edge:
        axes.plot([most, most], [place - MARK, place + MARK], color=INK, linewidth=2.6)
    else:
        axes.plot(edge, place, ">", color=INK, markersize=7, clip_on=False)
    for words, offset, vertical in (
        (f"{share(reached)} of", 1.5, "bottom"),
        (f"roofline {number(most)}", -1.5, "top"),
    ):
        axes.annotate(
            words,
            (1, place),
            (10, offset),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va=vertical,
            color=FAINT,
            annotation_clip=False,
        )


def _left(axes: Axes, place: int, words: str, offset: float, vertical: str, ink: str) -> None:
    """Beside the axis, in one of two lines."""
    axes.annotate(
        words,
        (0, place),
        (-8, offset),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        va=vertical,
        color=ink,
        annotation_clip=False,
    )
