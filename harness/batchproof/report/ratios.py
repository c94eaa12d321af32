"""All paired ratios of a file in one picture: dots with intervals about the line of no difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from batchproof.bench.ratios import Ratio
from batchproof.report.canvas import (
    FAINT,
    INK,
    MARKERS,
    Picture,
    draw,
    grid,
    label_log,
    series,
)
from batchproof.report.rows import Data
from batchproof.report.words import shortened


def ratio_dots(comparisons: Sequence[Data], colours: Mapping[str, int]) -> Picture | None:
    """None where nothing was compared."""
    has_models = len({each["model"]["name"] for each in comparisons}) > 1
    rows: list[str | Data] = []  # a heading, then its ratios
    for each in comparisons:
        if each["ratios"]:
            rows += [_heading(each, has_models), *each["ratios"]]
    ratios = [row for row in rows if not isinstance(row, str)]
    if not ratios:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for place, row in enumerate(rows):
            if isinstance(row, str):
                _beside(axes, place, row, is_left=True, ink=INK, fontweight="bold")
            else:
                _row(axes, place, row, colours[row["engine"]])
        axes.axvline(1, color=FAINT, linewidth=1.2)
        _scale(axes, [end for ratio in ratios for end in _ends(ratio)])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        grid(axes, "x")
        axes.set_xlabel("times the throughput (logarithmic)")

    caption = (
        "Right of the line at 1 the engine named first is faster. Dots are geometric means of ratios "
        "taken lap by lap, bars their 95 % intervals; one that holds 1 shows no difference."
    )
    return draw("Paired throughput ratios", caption, (450, 52 + 20 * len(rows)), paint)


def _heading(comparison: Data, with_model: bool) -> str:
    name: str = comparison["workload"]["name"]
    return f"{name}, {comparison['model']['name']}" if with_model else name


def _ends(row: Data) -> list[float]:
    return [row["ratio"], *(end for end in (row.get("low"), row.get("high")) if end)]


def _row(axes: Axes, place: int, row: Data, index: int) -> None:
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
    pair = f"{shortened(row['engine'], 16)} / {shortened(row['over'], 16)}"
    _beside(axes, place, pair, is_left=True, ink=INK)
    _beside(axes, place, ratio.figures(), is_left=False, ink=INK if ratio.is_different else FAINT)


def _beside(axes: Axes, place: int, words: str, is_left: bool, ink: str, **look: str) -> None:
    axes.annotate(
        words,
        (0 if is_left else 1, place),
        (-10 if is_left else 10, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right" if is_left else "left",
        va="center",
        color=ink,
        annotation_clip=False,
        **look,  # type: ignore[arg-type]
    )


def _scale(axes: Axes, values: Sequence[float]) -> None:
    low, high = min([0.95, *values]) * 0.96, max([1.05, *values]) * 1.04
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    label_log(axes.xaxis, low, high)
