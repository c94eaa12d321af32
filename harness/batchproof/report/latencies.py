"""How latencies are distributed: the share of requests, or gaps, that took no longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from batchproof.report.canvas import (
    DASHES,
    Picture,
    draw,
    grid,
    label_log,
    series,
)
from batchproof.report.rows import Data, is_shown
from batchproof.report.words import shortened

KINDS = {
    "ttft": ("Time to first token", "From arrival to the first token of a request."),
    "itl": ("Inter-token latency", "Every gap between two tokens of a request, pooled."),
    "e2el": ("End-to-end latency", "From arrival to the last token of a request."),
}
WIDE = 30.0  # slowest over fastest from which on the scale is logarithmic


def latency_pictures(rows: Sequence[Data], colours: Mapping[str, int]) -> list[Picture]:
    """One for each kind that some engine lets be seen."""
    found = []
    for kind, (title, meaning) in KINDS.items():
        lines = {
            row["engine"]: (row.get("distributions") or {}).get(f"{kind}_ms")
            for row in rows
            if is_shown(row)
        }
        seen = {engine: quantiles for engine, quantiles in lines.items() if quantiles}
        if seen:
            caption = f"{meaning} The more to the left a line is, the sooner the tokens come."
            found.append(_one(title, caption, seen, colours))
    return found


def _one(
    title: str, caption: str, lines: Mapping[str, Sequence[float]], colours: Mapping[str, int]
) -> Picture:
    fastest = min(min(each) for each in lines.values())
    slowest = max(max(each) for each in lines.values())

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for engine, quantiles in lines.items():
            index = colours[engine]
            shares = np.linspace(0, 100, len(quantiles)) if len(quantiles) > 1 else [50.0]
            axes.plot(
                sorted(quantiles),
                shares,
                color=series(index),
                linestyle=DASHES[index % len(DASHES)],
                linewidth=2,
                marker="o" if len(quantiles) == 1 else None,
                label=shortened(engine).lstrip("_"),
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

    return draw(title, caption, (310, 260), paint)
