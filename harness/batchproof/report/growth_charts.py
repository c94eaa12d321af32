"""How the cost of a step grows with sequences, context and prompt, on logarithmic scales."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from batchproof.report.chart import DASHES, MARKERS, Chart, grid, label_log, legend_name, series
from batchproof.report.rows import Data

LABELS = {
    "sequences": "sequences in the batch",
    "context": "context of each sequence, tokens",
    "prompt": "prompt length, tokens",
    "requests": "requests in the queue at first",
}
MAX_TICKS = 7


@dataclass(frozen=True, slots=True)
class Curve:
    """One engine: `x` as varied, and the typical, fastest and slowest lap in milliseconds."""

    label: str
    index: int
    x: tuple[float, ...]
    typical: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, sweep: Data, colours: Mapping[str, int]) -> Curve:
        """Returns the curve of an entry of a result file."""
        points = sweep["points"]
        typical, low, high = (
            1000 * np.array([point.get(key, point["seconds"]) for point in points], dtype=np.float64)
            for key in ("seconds", "low", "high")
        )
        x = tuple(point["x"] for point in points)
        return cls(_label(sweep), colours[sweep["engine"]], x, typical, low, high)


def growth_pictures(sweeps: Iterable[Data], colours: Mapping[str, int]) -> dict[str, Chart]:
    """Returns a picture of all engines for each model and each varied quantity, by a name for its
    file.
    """
    groups: dict[str, list[Data]] = {}
    for sweep in sweeps:
        if sweep["points"]:
            model = [sweep["model"]] if "model" in sweep else []
            groups.setdefault("-".join([*model, sweep["axis"]]), []).append(sweep)
    one_model = len({group[0].get("model") for group in groups.values()}) == 1
    return {
        group[0]["axis"] if one_model else name: _picture(group, colours)
        for name, group in groups.items()
    }


def _picture(sweeps: Sequence[Data], colours: Mapping[str, int]) -> Chart:
    first = sweeps[0]
    axis, per = first["axis"], first.get("unit", "s").removeprefix("s").strip()
    curves = [Curve.of(sweep, colours) for sweep in sweeps]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for curve in curves:
            _draw_curve(axes, curve)
        axes.set_xscale("log")
        axes.set_yscale("log")
        x = sorted({x for curve in curves for x in curve.x})
        ticks = x[:: -(-len(x) // MAX_TICKS)]
        axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        label_log(axes.yaxis, *axes.get_ylim())
        grid(axes, "both")
        axes.set_xlabel(LABELS.get(axis) or axis)
        axes.set_ylabel(f"ms {per}")
        figure.legend(loc="outside upper left", handlelength=2.4)

    fixed = ", ".join(f"{name} {value:,}" for name, value in first.get("fixed", {}).items())
    held = ", ".join(filter(None, [f"model {first['model']}" if "model" in first else "", fixed]))
    caption = (
        f"Both scales are logarithmic{f'; {held}' if held else ''}. The exponent is the slope of a "
        "line through the points, with its interval: 1 is growth in proportion, 0 is none. Bars span "
        "the fastest to the slowest lap."
    )
    by = "its length" if axis == "prompt" else axis
    return Chart(f"Time {per} by {by}", caption, 320, 300, draw)


def _draw_curve(axes: Axes, curve: Curve) -> None:
    axes.errorbar(
        curve.x,
        curve.typical,
        yerr=np.maximum(0, [curve.typical - curve.low, curve.high - curve.typical]),
        color=series(curve.index),
        marker=MARKERS[curve.index % len(MARKERS)],
        linestyle=DASHES[curve.index % len(DASHES)],
        markersize=4.5,
        linewidth=1.8,
        elinewidth=1.2,
        capsize=2.5,
        label=curve.label,
    )


def _label(sweep: Data) -> str:
    engine = legend_name(sweep["engine"])
    fit = sweep.get("fit")
    if not fit or fit.get("exponent") is None:
        return engine
    low, high = fit.get("low"), fit.get("high")
    interval = f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None else ""
    return f"{engine}: exponent {fit['exponent']:.2f}{interval}"
