"""Throughput as bars, with rounds as whiskers and a mark for what the hardware allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from batchproof.bench.reading import VALID
from batchproof.report.chart import FAINT, INK, Chart, beside, colour, grid, series
from batchproof.report.rows import Data, Throughput, throughput
from batchproof.report.words import clock_words, number, share, shortened

FARTHEST = 3.0  # a roofline beyond so many times the longest bar stands outside the axis
BAR, MARK = 0.5, 0.36  # height of a bar, half the height of a mark
MEANING = "Longer is faster. A bar is the median round, its whisker spans the slowest to the fastest. "
ROOFLINE = (
    "The upright mark, or the arrow where it lies beyond the edge, is the roofline: what the memory "
    "bandwidth and the matrix rate measured in the same run allow for this schedule."
)


@dataclass(frozen=True, slots=True)
class ThroughputBar:
    """One engine. It has no throughput if its answers were wrong."""

    engine: str
    verdict: str
    colour: str
    throughput: Throughput | None


def throughput_bars(comparison: Data, clock: str, colours: Mapping[str, int]) -> Chart:
    """Returns the picture of one comparison."""
    rows = comparison["rows"]
    bars = [
        ThroughputBar(
            row["engine"], row["verdict"], series(colours[row["engine"]]), throughput(row, clock)
        )
        for row in rows
    ]
    found = [bar.throughput for bar in bars if bar.throughput]
    longest = max((each.high for each in found), default=1.0)
    rooflines = [each.roofline for each in found if each.roofline]
    edge = 1.04 * max([longest, *(each for each in rooflines if each <= FARTHEST * longest)])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_xlim(0, edge)
        for place, bar in enumerate(bars):
            _draw_bar(axes, place, bar)
        axes.set_ylim(len(bars) - 0.45, -0.55)
        axes.set_yticks([])
        axes.spines["left"].set_color(FAINT)
        grid(axes, "x")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
        axes.set_xlabel(f"output tokens per second of {clock_words(clock)}")

    caption = MEANING + (ROOFLINE if rooflines else "")
    if any(each.roofline and each.typical > each.roofline for each in found):
        caption += " A model that stays in the processor's caches can pass it."
    title = f"Throughput: {comparison['workload']['name']}, model {comparison['model']['name']}"
    return Chart(title, caption, 450, 58 + 42 * len(bars), draw)


def _draw_bar(axes: Axes, place: int, bar: ThroughputBar) -> None:
    found = bar.throughput
    if found is None:
        beside(axes, place, shortened(bar.engine, 20), INK)
        words = f"  {bar.verdict}: no throughput is shown"
        axes.text(0, place, words, va="center", color=colour("bad"), fontweight="bold")
        return
    beside(axes, place, shortened(bar.engine, 20), INK, line=1)
    is_valid = bar.verdict == VALID
    axes.barh(
        place,
        found.typical,
        BAR,
        color=bar.colour if is_valid else colour("idle"),
        edgecolor=bar.colour,
        linewidth=1.2,
        hatch=None if is_valid else "///",
    )
    spread = [[found.typical - found.low], [found.high - found.typical]]
    axes.errorbar(
        found.typical, place, xerr=spread, color=INK, capsize=3.5, elinewidth=1.3, capthick=1.3
    )
    words = f"{number(found.typical)} /s" + ("" if is_valid else f", {bar.verdict}")
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
