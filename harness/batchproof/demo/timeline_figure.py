"""Slot timelines as one picture, to one scale."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from batchproof.figures import LIGHT, Chart
from batchproof.run.timeline import Timeline

# Requests: Paul Tol's "muted" scheme.
COLOURS = (
    *("#332288", "#88ccee", "#cc6677", "#ddcc77", "#117733"),
    *("#aa4499", "#44aa99", "#882255", "#999933"),
)
TITLE = "The same requests in waves and in continuous batching"
CAPTION = (
    "Each row is a slot, each letter a request: dark while its prompt is prefilled, light while tokens "
    "are decoded, empty while the slot is idle. A dashed line is a batch barrier."
)


def timeline_chart(timelines: Mapping[str, Timeline]) -> Chart:
    """`timelines`: by the heading of their panels."""

    def draw(figure: Figure) -> None:
        heights = [each.num_slots for each in timelines.values()]
        panels: Any = figure.subplots(
            len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )
        for axes, (heading, timeline) in zip(panels.flat, timelines.items(), strict=True):
            axes.set_title(f"{heading}: {len(timeline.steps)} steps", loc="left")
            _draw_panel(axes, timeline)
        panels.flat[-1].set_xlabel("step")

    num_slots = sum(each.num_slots for each in timelines.values())
    return Chart(TITLE, CAPTION, 640, 80 + 45 * len(timelines) + 24 * num_slots, draw)


def _draw_panel(axes: Axes, timeline: Timeline) -> None:
    for slot in range(timeline.num_slots):
        start = 0
        for request, cells in groupby(timeline.row(slot), lambda cell: cell.request if cell else ""):
            is_prefill = [cell is not None and cell.is_prefill for cell in cells]
            if request:
                _draw_stay(axes, slot, start, request, is_prefill)
            start += len(is_prefill)
    for barrier in timeline.barriers:
        axes.axvline(barrier + 1.5, color=LIGHT["bad"], linestyle=(0, (4, 2)), linewidth=1.6)
    axes.set_facecolor(LIGHT["idle"])
    axes.set_ylim(timeline.num_slots - 0.45, -0.55)
    axes.set_yticks(range(timeline.num_slots), [f"slot {n + 1}" for n in range(timeline.num_slots)])
    axes.tick_params(left=False)
    axes.set_xlim(0.5, None)


def _draw_stay(axes: Axes, slot: int, start: int, request: str, is_prefill: list[bool]) -> None:
    """Draws consecutive steps in which one slot serves one request, from step `start` on."""
    colour = COLOURS[ord(request) % len(COLOURS)]
    for step, is_dark in enumerate(is_prefill, start=start):
        look = {"color": colour, "alpha": 1.0 if is_dark else 0.45, "linewidth": 0}
        axes.broken_barh([(step + 0.5, 1.0)], (slot - 0.42, 0.84), **look)  # type: ignore[arg-type]
    middle = start + 0.5 + len(is_prefill) / 2
    axes.text(middle, slot, request, ha="center", va="center", fontweight="bold", color=LIGHT["ink"])
