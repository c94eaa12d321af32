"""Latency against throughput as the load rises, and the trade between throughput and interactivity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from batchproof.bench.load import by_title
from batchproof.report.chart import (
    DASHES,
    FAINT,
    MARKERS,
    Chart,
    grid,
    label_log,
    label_plainly,
    legend_name,
    series,
)
from batchproof.report.rows import Data

WIDTH, HEIGHT = 340, 330
WIDE = 8.0  # highest over lowest value from which on the scale is logarithmic
LOADS = {"rate": "requests per second offered", "concurrency": "requests in flight"}
THROUGHPUT = "output_throughput"
REST = (
    "Thin bars span the laps. The ring marks the knee: among the loads that the engine keeps up with, "
    "the one of largest throughput per end-to-end latency."
)
Values: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """One engine. Points rise in load; `knee` is the index of one of them, if the curve has a knee."""

    label: str
    index: int
    points: tuple[Data, ...]  # those with figures
    knee: int | None

    @classmethod
    def of(cls, entry: Data, colours: Mapping[str, int]) -> Line:
        """Returns the line of an entry of a result file. Saturated points have no place on it."""
        points = tuple(point for point in entry["points"] if point["metrics"])
        loads = [point["load"] for point in points]
        knee = loads.index(entry["knee"]) if entry["knee"] in loads else None
        return cls(legend_name(entry["engine"]), colours[entry["engine"]], points, knee)

    def values(self, name: str) -> Values:
        """Returns a figure of each point, (3, num_points): itself, its lowest and its highest lap."""
        own = [(point["metrics"][name], *point["spread"][name]) for point in self.points]
        return np.array(own, dtype=np.float64).T


def load_pictures(entries: Iterable[Data], colours: Mapping[str, int]) -> dict[str, tuple[Chart, ...]]:
    """Returns the pictures of each group of engines that ran side by side, by its title."""
    drawn = {}
    for title, group in by_title(entries).items():
        lines = [Line.of(entry, colours) for entry in group]
        lines = [line for line in lines if line.points]
        if lines:
            name, kind = group[0]["workload"]["name"], group[0]["kind"]
            drawn[title] = (_latency(name, kind, lines), *_interactivity(name, kind, lines))
    return drawn


def _latency(name: str, kind: str, lines: Sequence[Line]) -> Chart:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for line in lines:
            for quantile, dash in (("median", "-"), ("p99", (0, (4, 2)))):
                label = f"{line.label}, {'p50' if quantile == 'median' else 'p99'}"
                latency = line.values(f"{quantile}_ttft_ms")
                _draw(axes, line, line.values(THROUGHPUT), latency, dash, label)
        low, high = axes.dataLim.intervaly
        if low > 0 and high > WIDE * low:
            axes.set_yscale("log")
            label_log(axes.yaxis, *axes.get_ylim())
        _finish(figure, axes, "output tokens per second", "time to first token, ms")

    caption = (
        f"Each point is a load, {LOADS[kind]}, rising along a line. Right and low is better. {REST}"
    )
    return Chart(f"Latency against throughput: {name}", caption, WIDTH, HEIGHT, draw)


def _interactivity(name: str, kind: str, lines: Sequence[Line]) -> tuple[Chart, ...]:
    """Returns the picture of the engines that stream, or none if no answer has two tokens."""
    lines = [
        line
        for line in lines
        if all(point["metrics"]["median_tpot_ms"] is not None for point in line.points)
    ]
    if not lines:
        return ()

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for line, dash in zip(lines, cycle(DASHES), strict=False):
            x = 1000 / line.values("median_tpot_ms")[[0, 2, 1]]  # the longest time is the lowest rate
            _draw(axes, line, x, line.values(THROUGHPUT), dash, line.label)
        axes.set_ylim(bottom=0)
        _finish(figure, axes, "tokens per second of one user (1 / tpot)", "output tokens per second")

    caption = (
        f"What all users get together against what the median request gets, at each load, "
        f"{LOADS[kind]}. Right and high is better. {REST}"
    )
    return (Chart(f"Throughput against interactivity: {name}", caption, WIDTH, HEIGHT, draw),)


def _draw(axes: Axes, line: Line, x: Values, y: Values, dash: Any, label: str) -> None:
    """`x` and `y` hold values, lowest and highest laps, a column for each point."""
    colour, knee = series(line.index), line.knee
    axes.errorbar(
        x[0],
        y[0],
        xerr=np.maximum(0, [x[0] - x[1], x[2] - x[0]]),
        yerr=np.maximum(0, [y[0] - y[1], y[2] - y[0]]),
        color=colour,
        marker=MARKERS[line.index % len(MARKERS)],
        linestyle=dash,
        markersize=4.5,
        linewidth=1.6,
        elinewidth=0.7,
        label=label,
    )
    if knee is not None:
        at = (float(x[0][knee]), float(y[0][knee]))
        axes.plot(*at, "o", color=colour, markersize=12, fillstyle="none", markeredgewidth=1.6)
        words = f"knee {line.points[knee]['load']:g}"
        axes.annotate(words, at, (9, -11), textcoords="offset points", color=FAINT, fontsize=9.5)


def _finish(figure: Figure, axes: Axes, x: str, y: str) -> None:
    label_plainly(axes.xaxis)
    if axes.get_yscale() == "linear":
        label_plainly(axes.yaxis)
    grid(axes, "both")
    axes.set_xlim(left=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    figure.legend(loc="outside upper left", ncols=2, handlelength=2.4)
