"""Slot timelines: a panel an engine, a row a slot, one scale in steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from batchproof.report.canvas import (
    INK,
    Picture,
    colour,
    draw,
)
from batchproof.report.rows import Data, schedule
from batchproof.report.theme import NUM_REQUEST_COLOURS
from batchproof.report.words import count, share, shortened

Box = tuple[float, float, float, float]  # left, right, top, bottom; in steps and slots
TINT = 0.45  # of the full colour in a decode
ROW = 0.88  # height of a bar where a row is 1
WIDTH, LEGEND, PANEL = 720, 70, 54
DIGIT = 6.4  # pixels a digit of a request's number takes
IDLE: dict[str, Any] = {"facecolor": colour("idle"), "edgecolor": colour("hatch"), "hatch": "////"}
BARRIER: dict[str, Any] = {"color": colour("bad"), "linewidth": 1.4, "linestyle": (0, (4, 2.5))}
DARK = {0, 4, 5, 7}  # request colours that want white digits


def slot_timelines(name: str, rows: Sequence[Data]) -> Picture:
    """`rows` have a timeline each, of equally many slots."""
    timelines = [schedule(row)["timeline"] for row in rows]
    longest = max(each["num_steps"] for each in timelines)
    has_pads = any(_fills(each)["pad"] for each in timelines)
    has_barriers = any(each["barriers"] for each in timelines)
    num_slots = timelines[0]["num_slots"]
    slot = 17 if num_slots <= 8 else 10 if num_slots <= 24 else 5
    height = LEGEND + len(rows) * (PANEL + slot * num_slots)

    def paint(figure: Figure) -> None:
        panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
        for axes, row, timeline in zip(panels, rows, timelines, strict=True):
            _panel(axes, timeline, slot, (WIDTH - 60) / longest)
            axes.set_title(_heading(row), loc="left", pad=7)
        panels[-1].set_xlim(0, longest)
        panels[-1].set_xlabel("steps (one pass through the model each)")
        handles = _legend(has_pads, has_barriers)
        figure.legend(handles=handles, loc="outside lower left", ncols=5, handlelength=1.6)

    caption = (
        "Each row is a slot of the batch, each colour a request: full colour while its prompt is fed, "
        "a tint while it decodes, one token a step. Hatched slots do nothing useful."
    )
    if has_pads:
        caption += " The grey part of a prefill is the share of pads in it."
    if has_barriers:
        caption += " A static wave is over when its longest answer is (dashed line)."
    return draw(f"Who sat in which slot: {name}", caption, (WIDTH, height), paint)


def _heading(row: Data) -> str:
    own = schedule(row)
    busy = f", {share(own['occupancy'])} of slot-steps busy" if own.get("occupancy") is not None else ""
    return f"{shortened(row['engine'], 40)}: {count(own['timeline']['num_steps'])} steps{busy}"


def _panel(axes: Axes, timeline: Data, slot_pixels: float, step_pixels: float) -> None:
    num_slots = timeline["num_slots"]
    fills = _fills(timeline)
    _add(axes, fills.pop("idle"), **IDLE)
    _add(axes, fills.pop("pad"), facecolor=colour("pad"))
    for key, boxes in fills.items():
        name, _, kind = key.partition(" ")
        alpha = TINT if kind == "decode" else None
        _add(axes, boxes, facecolor=colour(name), alpha=alpha)
    _add(axes, _outlines(timeline), fill=False, edgecolor=colour("paper"), linewidth=1)
    if slot_pixels >= 14:
        _numbers(axes, timeline, step_pixels)
    for barrier in timeline["barriers"]:
        axes.axvline(barrier + 1, **BARRIER)
    axes.set_ylim(num_slots - 0.5, -0.5)
    every = 1 if num_slots <= 8 else 4 if num_slots <= 32 else 16
    marked = [slot for slot in range(num_slots) if slot == 0 or (slot + 1) % every == 0]
    axes.set_yticks(marked, [str(slot + 1) for slot in marked])
    axes.set_ylabel("slot")
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _fills(timeline: Data) -> dict[str, list[Box]]:
    """Boxes by what fills them; one path each keeps the picture small."""
    fills: dict[str, list[Box]] = {"idle": _idle(timeline), "pad": []}
    for stay in timeline["stays"]:
        name = f"r{stay['request'] % NUM_REQUEST_COLOURS}"
        top, bottom = _span(stay["slot"])
        start = stay["start"]
        for step, (num_real, num_fed) in enumerate(stay["prefill"], start):
            middle = bottom - (bottom - top) * num_real / max(num_fed, 1)
            fills.setdefault(f"{name} prefill", []).append((step, step + 1, middle, bottom))
            if num_fed > num_real:
                fills["pad"].append((step, step + 1, top, middle))
        first = start + len(stay["prefill"])
        if stay["decodes"]:
            box = (first, first + stay["decodes"], top, bottom)
            fills.setdefault(f"{name} decode", []).append(box)
    return fills


def _idle(timeline: Data) -> list[Box]:
    """Where no request sits."""
    found: list[Box] = []
    for slot in range(timeline["num_slots"]):
        taken = sorted((s["start"], _end(s)) for s in timeline["stays"] if s["slot"] == slot)
        edges = [(0, 0), *taken, (timeline["num_steps"], 0)]
        found += [
            (ended, began, *_span(slot)) for (_, ended), (began, _) in pairwise(edges) if began > ended
        ]
    return found


def _outlines(timeline: Data) -> list[Box]:
    return [(s["start"], _end(s), *_span(s["slot"])) for s in timeline["stays"]]


def _end(stay: Data) -> int:
    end: int = stay["start"] + len(stay["prefill"]) + stay["decodes"]
    return end


def _span(slot: int) -> tuple[float, float]:
    return slot - ROW / 2, slot + ROW / 2


def _add(axes: Axes, boxes: Sequence[Box], **look: Any) -> None:
    if not boxes:
        return
    vertices = [
        corner
        for left, right, top, bottom in boxes
        for corner in ((left, top), (right, top), (right, bottom), (left, bottom), (left, top))
    ]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(boxes)
    axes.add_patch(PathPatch(Path(vertices, codes), **({"linewidth": 0} | look)))


def _numbers(axes: Axes, timeline: Data, step_pixels: float) -> None:
    """The request's number, from 1, in the wider part of its bar if there is room."""
    for stay in timeline["stays"]:
        words = str(stay["request"] + 1)
        num_prefills, num_decodes = len(stay["prefill"]), stay["decodes"]
        is_tinted = num_decodes >= num_prefills
        if max(num_prefills, num_decodes) * step_pixels < DIGIT * len(words) + 3:
            continue
        start = stay["start"] + (num_prefills if is_tinted else 0)
        middle = start + (num_decodes if is_tinted else num_prefills) / 2
        is_dark = stay["request"] % NUM_REQUEST_COLOURS in DARK
        ink = INK if is_tinted else "#ffffff" if is_dark else "#1f2328"
        axes.text(
            middle, stay["slot"], words, ha="center", va="center_baseline", color=ink, fontsize=9.5
        )


def _legend(has_pads: bool, has_barriers: bool) -> list[Patch | Line2D]:
    sample = colour("r0")
    handles: list[Patch | Line2D] = [
        Patch(facecolor=sample, label="prefill"),
        Patch(facecolor=sample, alpha=TINT, label="decode"),
        Patch(linewidth=0, label="idle", **IDLE),
    ]
    if has_pads:
        handles.append(Patch(facecolor=colour("pad"), label="pads in a prefill"))
    if has_barriers:
        handles.append(Line2D([], [], label="barrier", **BARRIER))
    return handles
