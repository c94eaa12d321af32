"""The distribution of latencies: the share of requests, or gaps, that took no longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from batchproof.report.chart import DASHES, Chart, grid, label_log, label_plainly, legend_name, series
from batchproof.report.rows import Data, is_shown

KINDS = {
    "ttft": ("Time to first token", "From arrival to the first token of a request."),
    "itl": ("Inter-token latency", "Every gap between two tokens of a request, pooled."),
    "e2el": ("End-to-end latency", "From arrival to the last token of a request."),
}
WIDE = 30.0  # slowest over fastest from which on the scale is logarithmic


def latency_pictures(rows: Sequence[Data], colours: Mapping[str, int]) -> tuple[Chart, ...]:
    """Returns a picture of each kind of latency that some engine shows."""
    seen = {
        kind: {
            row["engine"]: sorted(quantiles)
            for row in rows
            if is_shown(row) and (quantiles := (row.get("distributions") or {}).get(f"{kind}_ms"))
        }
        for kind in KINDS
    }
    return tuple(_picture(*KINDS[kind], lines, colours) for kind, lines in seen.items() if lines)


def _picture(
    title: str, meaning: str, lines: Mapping[str, Sequence[float]], colours: Mapping[str, int]
) -> Chart:
    """`lines`: the quantiles of each engine in milliseconds, ascending."""
    fastest = min(quantiles[0] for quantiles in lines.values())
    slowest = max(quantiles[-1] for quantiles in lines.values())

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for engine, quantiles in lines.items():
            num, index = len(quantiles), colours[engine]
            axes.plot(
                quantiles,
                np.linspace(0, 100, num) if num > 1 else [50.0],
                color=series(index),
                linestyle=DASHES[index % len(DASHES)],
                linewidth=2,
                marker="o" if num == 1 else None,
                label=legend_name(engine),
            )
        if fastest > 0 and slowest > WIDE * fastest:
            axes.set_xscale("log")
            label_log(axes.xaxis, fastest, slowest)
        else:
            axes.set_xlim(0, 1.03 * slowest or 1)
            label_plainly(axes.xaxis)
        axes.set_ylim(0, 101)
        grid(axes, "both")
        axes.set_xlabel("milliseconds")
        axes.set_ylabel("share no slower, %")
        figure.legend(loc="outside upper left", ncols=2, handlelength=2.2)

    caption = f"{meaning} The farther left a line is, the sooner the tokens come."
    return Chart(title, caption, 310, 260, draw)
