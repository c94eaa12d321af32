"""What each step's batch consisted of, and how many requests waited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from batchproof.drawing.timeline_svg import TINT
from batchproof.report.chart import FAINT, INK, Chart, colour, grid
from batchproof.report.rows import Data, schedule
from batchproof.report.words import shortened

NUM_COLUMNS = 300  # of a longer run a column is the mean of several steps
Floats = NDArray[np.float64]
Columns = tuple[Floats, Floats]  # steps between which means hold; the means (columns, 4), as in a file
# As in the timelines.
LOOKS: dict[str, dict[str, Any]] = {
    "prefill": {"facecolor": colour("r0")},
    "decode": {"facecolor": colour("r0"), "alpha": TINT},
    "idle": {"facecolor": colour("idle"), "edgecolor": colour("hatch"), "hatch": "////"},
}


def compositions(rows: Sequence[Data]) -> tuple[Chart, ...]:
    """Returns a picture per engine, all to the same scales."""
    shown = [row for row in rows if schedule(row).get("composition")]
    steps = [np.asarray(schedule(row)["composition"], dtype=np.float64) for row in shown]
    longest = max(map(len, steps), default=0)
    width = -(-longest // NUM_COLUMNS)
    columns = [_columns(each, width) for each in steps]
    limits = (
        longest,
        max((float(means[:, 0].max()) for _, means in columns), default=0.0),
        max((float(means[:, 3].max()) for _, means in columns), default=0.0),
    )
    return tuple(_one(row, each, width, limits) for row, each in zip(shown, columns, strict=True))


def _columns(steps: Floats, width: int) -> Columns:
    """Returns the columns. The last may be narrower and is the mean of the steps it has."""
    edges = np.append(np.arange(0, len(steps), width), len(steps)).astype(np.float64)
    sums = np.add.reduceat(steps, edges[:-1].astype(np.intp), axis=0)
    return edges, sums / np.diff(edges)[:, None]


def _one(row: Data, columns: Columns, width: int, limits: tuple[int, float, float]) -> Chart:
    num_slots = schedule(row)["timeline"]["num_slots"]
    edges, means = columns
    num_prefill_tokens, num_decodes, num_idle, num_waiting = means.T
    num_prefills = num_slots - num_decodes - num_idle

    def draw(figure: Figure) -> None:
        tokens, slots, queue = figure.subplots(3, 1, sharex=True, height_ratios=(1, 1.4, 0.8))
        _stack(tokens, edges, [(num_prefill_tokens, "prefill")])
        shares = [(num_decodes, "decode"), (num_prefills, "prefill"), (num_idle, "idle")]
        for label, area in _stack(slots, edges, shares):
            area.set_label(label)
        waiting = np.append(num_waiting, num_waiting[-1])
        queue.step(edges, waiting, where="post", color=INK, linewidth=1.4)
        for axes, top, words in (
            (tokens, limits[1], "prompt\ntokens"),
            (slots, num_slots, "slots"),
            (queue, limits[2], "waiting"),
        ):
            axes.set_ylim(0, 1.06 * max(top, 1))
            axes.yaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 4, 5, 8, 10]))
            axes.set_ylabel(words, rotation=0, ha="right", va="center")
            grid(axes, "y")
        queue.set_xlim(0, limits[0])
        queue.set_xlabel("step")
        figure.legend(loc="outside upper left", ncols=3, handlelength=1.2, columnspacing=1.2)

    several = f"; a column is the mean of {width} steps" if width > 1 else ""
    caption = (
        "Above, prompt tokens fed in a step; in the middle, what the slots did; below, requests waiting"
        f"{several}."
    )
    return Chart(f"Batches: {shortened(row['engine'], 30)}", caption, 310, 270, draw)


def _stack(
    axes: Axes, edges: Floats, parts: Sequence[tuple[Floats, str]]
) -> list[tuple[str, PolyCollection]]:
    """Draws areas on top of each other; a value holds from its edge to the next."""
    areas: list[tuple[str, PolyCollection]] = []
    bottom = np.zeros(len(edges))
    for values, kind in parts:
        top = bottom + np.append(values, values[-1])
        areas.append(
            (kind, axes.fill_between(edges, bottom, top, step="post", linewidth=0, **LOOKS[kind]))
        )
        bottom = top
    axes.spines["left"].set_color(FAINT)
    return areas
