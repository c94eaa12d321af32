"""The distribution of latencies: the share of requests, or gaps, that took no longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from batchproof.report.chart import DASHES, Chart, grid, label_log, series
from batchproof.report.rows import Data, is_shown
from batchproof.report.words import shortened

KINDS = {
    "ttft": ("Time to first token", "From arrival to the first token of a request."),
    "itl": ("Inter-token latency", "Every gap between two tokens of a request, pooled."),
    "e2el": ("End-to-end latency", "From arrival to the last token of a request."),
}
WIDE = 30.0  # slowest over fastest from which on the scale is logarithmic


@dataclass(frozen=True, slots=True)
class QuantileLine:
    """The quantiles of one engine in milliseconds, ascending."""

    label: str
    index: int
    quantiles: tuple[float, ...]


def latency_pictures(rows: Sequence[Data], colours: Mapping[str, int]) -> tuple[Chart, ...]:
    """Returns a picture of each kind of latency that some engine shows."""
    lines = {
        kind: [
            QuantileLine(
                shortened(row["engine"]).lstrip("_"), colours[row["engine"]], tuple(sorted(quantiles))
            )
            for row in rows
            if is_shown(row) and (quantiles := (row.get("distributions") or {}).get(f"{kind}_ms"))
        ]
        for kind in KINDS
    }
    return tuple(_picture(*KINDS[kind], seen) for kind, seen in lines.items() if seen)


def _picture(title: str, meaning: str, lines: Sequence[QuantileLine]) -> Chart:
    fastest = min(line.quantiles[0] for line in lines)
    slowest = max(line.quantiles[-1] for line in lines)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for line in lines:
            num = len(line.quantiles)
            axes.plot(
                line.quantiles,
                np.linspace(0, 100, num) if num > 1 else [50.0],
                color=series(line.index),
                linestyle=DASHES[line.index % len(DASHES)],
                linewidth=2,
                marker="o" if num == 1 else None,
                label=line.label,
            )
        if fastest > 0 and slowest > WIDE * fastest:
            axes.set_xscale("log")
            label_log(axes.xaxis, fastest, slowest)
        else:
            axes.set_xlim(0, 1.03 * slowest or 1)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
        axes.set_ylim(0, 101)
        grid(axes, "both")
        axes.set_xlabel("milliseconds")
        axes.set_ylabel("share no slower, %")
        figure.legend(loc="outside upper left", ncols=2, handlelength=2.2)

    caption = f"{meaning} The farther left a line is, the sooner the tokens come."
    return Chart(title, caption, 310, 260, draw)
