"""All paired ratios of a file in one picture: dots with intervals around the line of no difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from batchproof.bench.ratios import Ratio
from batchproof.report.chart import FAINT, INK, MARKERS, Chart, beside, grid, label_log, series
from batchproof.report.rows import Data
from batchproof.report.words import shortened

CAPTION = (
    "Right of the line at 1 the engine named first is faster. Dots are geometric means of ratios taken "
    "lap by lap, bars their 95 % intervals; one that holds 1 shows no difference."
)


def ratio_dots(comparisons: Sequence[Data], colours: Mapping[str, int]) -> Chart | None:
    """Returns the picture, or None if no two engines were compared."""
    has_models = len({each["model"]["name"] for each in comparisons}) > 1
    lines: list[str | tuple[Data, int]] = []  # a heading, then its ratios with colours
    ends: list[float] = []
    for each in comparisons:
        if each["ratios"]:
            lines.append(_heading(each, has_models))
        for row in each["ratios"]:
            lines.append((row, colours[row["engine"]]))
            ends += filter(None, (row["ratio"], row["low"], row["high"]))
    if not ends:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for place, line in enumerate(lines):
            if isinstance(line, str):
                beside(axes, place, line, INK, fontweight="bold")
            else:
                _draw_dot(axes, place, *line)
        axes.axvline(1, color=FAINT, linewidth=1.2)
        _scale(axes, ends)
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        grid(axes, "x")
        axes.set_xlabel("times the throughput (logarithmic)")

    return Chart("Paired throughput ratios", CAPTION, 450, 52 + 20 * len(lines), draw)


def _heading(comparison: Data, with_model: bool) -> str:
    name: str = comparison["workload"]["name"]
    return f"{name}, {comparison['model']['name']}" if with_model else name


def _draw_dot(axes: Axes, place: int, row: Data, index: int) -> None:
    """`index` gives the colour and the marker of the first engine."""
    ratio = Ratio.of(row)
    if ratio.low is not None and ratio.high is not None:
        axes.plot([ratio.low, ratio.high], [place, place], color=INK, linewidth=1.6)
    axes.plot(
        ratio.ratio,
        place,
        MARKERS[index % len(MARKERS)],
        color=series(index),
        markersize=7,
        markeredgecolor=INK,
        markeredgewidth=0.8,
    )
    beside(axes, place, f"{shortened(row['engine'], 16)} / {shortened(row['over'], 16)}", INK)
    beside(axes, place, ratio.figures(), INK if ratio.is_different else FAINT, is_left=False)


def _scale(axes: Axes, values: Sequence[float]) -> None:
    low, high = min([0.95, *values]) * 0.96, max([1.05, *values]) * 1.04
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    label_log(axes.xaxis, low, high)
