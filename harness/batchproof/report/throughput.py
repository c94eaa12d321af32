"""Throughput as bars, with rounds as whiskers and a mark for what the hardware allows."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from batchproof.bench.reading import VALID
from batchproof.report.chart import FAINT, INK, Chart, beside, colour, grid, label_plainly, series
from batchproof.report.rows import Data, Throughput, throughput
from batchproof.report.words import clock_words, number, share, shortened

FARTHEST = 3.0  # a roofline beyond so many times the longest bar stands outside the axis
BAR, MARK = 0.5, 0.36  # height of a bar, half the height of a mark
MEANING = "Longer is faster. A bar is the median round, its whisker spans the slowest to the fastest. "
ROOFLINE = (
    "The upright mark, or the arrow where it lies beyond the edge, is the roofline: what the memory "
    "bandwidth and the matrix rate measured in the same run allow for this schedule."
)


def throughput_bars(comparison: Data, clock: str, colours: Mapping[str, int]) -> Chart:
    """Returns the picture of one comparison."""
    rows = comparison["rows"]
    measured = [throughput(row, clock) for row in rows]
    found = [each for each in measured if each]
    longest = max((each.high for each in found), default=1.0)
    rooflines = [each.roofline for each in found if each.roofline]
    edge = 1.04 * max([longest, *(each for each in rooflines if each <= FARTHEST * longest)])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_xlim(0, edge)
        for place, (row, each) in enumerate(zip(rows, measured, strict=True)):
            _draw_bar(axes, place, row, each, series(colours[row["engine"]]))
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.set_yticks([])
        axes.spines["left"].set_color(FAINT)
        grid(axes, "x")
        label_plainly(axes.xaxis)
        axes.set_xlabel(f"output tokens per second of {clock_words(clock)}")

    caption = MEANING + (ROOFLINE if rooflines else "")
    if any(each.roofline and each.typical > each.roofline for each in found):
        caption += " A model that stays in the processor's caches can pass it."
    title = f"Throughput: {comparison['workload']['name']}, model {comparison['model']['name']}"
    return Chart(title, caption, 450, 58 + 42 * len(rows), draw)


def _draw_bar(axes: Axes, place: int, row: Data, found: Throughput | None, own: str) -> None:
    """`own` is the engine's colour. It has no throughput if its answers were wrong."""
    engine, verdict = shortened(row["engine"], 20), row["verdict"]
    if found is None:
        beside(axes, place, engine, INK)
        words = f"  {verdict}: no throughput is shown"
        axes.text(0, place, words, va="center", color=colour("bad"), fontweight="bold")
        return
    beside(axes, place, engine, INK, line=1)
    is_valid = verdict == VALID
    axes.barh(
        place,
        found.typical,
        BAR,
        color=own if is_valid else colour("idle"),
        edgecolor=own,
        linewidth=1.2,
        hatch=None if is_valid else "///",
    )
    spread = [[found.typical - found.low], [found.high - found.typical]]
    axes.errorbar(
        found.typical, place, xerr=spread, color=INK, capsize=3.5, elinewidth=1.3, capthick=1.3
    )
    words = f"{number(found.typical)} /s" + ("" if is_valid else f", {verdict}")
    beside(axes, place, words, FAINT, line=-1)
    if found.roofline is not None:
        _draw_roofline(axes, place, found.roofline, found.typical / found.roofline)


def _draw_roofline(axes: Axes, place: int, most: float, reached: float) -> None:
    _, edge = axes.get_xlim()
    if most <= edge:
        axes.plot([most, most], [place - MARK, place + MARK], color=INK, linewidth=2.6)
    else:
        axes.plot(edge, place, ">", color=INK, markersize=7, clip_on=False)
    beside(axes, place, f"{share(reached)} of", FAINT, line=1, is_left=False)
    beside(axes, place, f"roofline {number(most)}", FAINT, line=-1, is_left=False)
