"""Slot timelines as SVG: a panel per engine, a row per slot, one scale in steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from batchproof.drawing.picture import Paint, Picture, templates
from batchproof.drawing.theme import NUM_REQUEST_COLOURS, ink_on
from batchproof.timeline import Span, Timeline

WIDTH, LEFT = 860, 52  # of the picture, and of the names of the slots
HEADING, BARRIERS, AXIS = 22, 16, 44  # heights above the rows of a panel, and below them
TINT = 0.45  # share of the full colour in a decode
DIGIT = 7.2  # pixels that a letter of a name takes
SMALLEST_LETTERED = 14  # a lower row carries no names
TICKS = (1, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
TICK_DISTANCE = 36
LEGEND_COLUMN = 106
KINDS = {
    "prefill": "prefill: prompt tokens are fed",
    "decode": "decode: one token a step",
    "idle": "idle: nothing useful is computed",
    "pad": "pads in a prefill",
}


@dataclass(frozen=True, slots=True)
class Rect:
    """Part of a bar; `colour` is a name of the theme."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    opacity: float = 1


@dataclass(frozen=True, slots=True)
class SpanBar:
    """One span. `ink` is the colour of its name, which stands at `middle`; None: there is no room for
    it.
    """

    words: str
    name: str
    parts: tuple[Rect, ...]
    outline: Rect
    middle: float | None
    ink: str | None  # None: the ink of the theme


@dataclass(frozen=True, slots=True)
class Panel:
    """One engine, measured from the top of its panel."""

    y: float
    heading: str
    note: str
    slots: tuple[tuple[int, float], ...]  # numbers from 1, and tops of their rows
    width: float
    bars: tuple[SpanBar, ...]
    barriers: tuple[float, ...]
    bottom: float
    ticks: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class LegendKey:
    """One mark of the legend with its meaning."""

    x: float
    y: float
    name: str
    words: str
    colour: str


@dataclass(frozen=True, slots=True)
class TimelinePicture(Picture):
    """Panels above a legend."""

    panels: tuple[Panel, ...]
    kinds: tuple[LegendKey, ...]
    requests: tuple[LegendKey, ...]
    row_height: float

    def body(self, paint: Paint, ids: str) -> str:
        """Returns panels and legend as SVG."""
        template = templates(__package__).get_template("timeline.svg.jinja")
        return template.render(picture=self, paint=paint, ids=ids, ink_on=ink_on, left=LEFT, tint=TINT)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Pixels of a step and of a row, and the colour of each request."""

    step: float
    row: float
    pitch: float  # from one row to the next
    colours: Mapping[str, str]

    def x(self, step: float) -> float:
        """Returns where a step (counted from 0) begins, in pixels."""
        return LEFT + step * self.step


def timeline_picture(
    timelines: Sequence[tuple[str, Timeline]], requests: Mapping[str, str], title: str, caption: str
) -> TimelinePicture:
    """Returns the picture. `timelines` come with their headings.

    `requests` holds the legend of each request (may be empty), in the order in which they take their
    colours.
    """
    longest = max(timeline.num_steps for _, timeline in timelines)
    num_slots = max(timeline.num_slots for _, timeline in timelines)
    row, gap = (26, 4) if num_slots <= 4 else (17, 3) if num_slots <= 8 else (10, 2)
    row, gap = (row, gap) if num_slots <= 24 else (5, 1)
    colours = {name: f"r{index % NUM_REQUEST_COLOURS}" for index, name in enumerate(requests)}
    scale = _Scale((WIDTH - LEFT) / longest, row, row + gap, colours)
    heights = [_head(each) + each.num_slots * scale.pitch + AXIS for _, each in timelines]
    *tops, bottom = accumulate(heights, initial=0.0)
    panels = [
        _panel(name, timeline, scale, top)
        for (name, timeline), top in zip(timelines, tops, strict=True)
    ]
    has_pads = any(fed > n for _, t in timelines for s in t.spans for n, fed in s.prefill)
    kinds = tuple(_kinds(bottom + 8, has_pads))
    keys = tuple(_requests(requests, colours, bottom + 62)) if any(requests.values()) else ()
    height = max(key.y for key in kinds + keys) + 8
    return TimelinePicture(title, caption, WIDTH, height, tuple(panels), kinds, keys, row)


def _head(timeline: Timeline) -> float:
    return HEADING + (BARRIERS if timeline.barriers else 0)


def _panel(name: str, timeline: Timeline, scale: _Scale, top: float) -> Panel:
    busy = (
        f"{timeline.num_busy:,} of {timeline.num_slot_steps:,} slot-steps busy "
        f"({timeline.occupancy:.0%})"
    )
    every = 1 if scale.row > SMALLEST_LETTERED else 4 if timeline.num_slots <= 24 else 16
    rows = [_head(timeline) + slot * scale.pitch for slot in range(timeline.num_slots)]
    return Panel(
        top,
        f"{name}: {timeline.num_steps:,} steps",
        busy,
        tuple((n if n == 1 or n % every == 0 else 0, y) for n, y in enumerate(rows, start=1)),
        timeline.num_steps * scale.step,
        tuple(_bar(span, rows[span.slot], scale) for span in timeline.spans),
        tuple(scale.x(barrier + 1) for barrier in timeline.barriers),
        rows[-1] + scale.row,
        tuple(_ticks(timeline.num_steps, scale)),
    )


def _bar(span: Span, y: float, scale: _Scale) -> SpanBar:
    """Returns the bar of a span: prefill in full colour, its pads in grey above, decodes in a tint."""
    colour, num_prefills = scale.colours[span.request], len(span.prefill)
    parts = []
    for step, (num_tokens, num_fed) in enumerate(span.prefill, span.start):
        pads = scale.row * (1 - num_tokens / max(num_fed, 1))
        parts.append(Rect(scale.x(step), y + pads, scale.step, scale.row - pads, colour))
        if pads:
            parts.append(Rect(scale.x(step), y, scale.step, pads, "pad"))
    decodes = scale.x(span.start + num_prefills)
    if span.num_decodes:
        parts.append(Rect(decodes, y, span.num_decodes * scale.step, scale.row, colour, TINT))
    is_tinted = span.num_decodes >= num_prefills
    room = max(span.num_decodes, num_prefills) * scale.step
    left = decodes if is_tinted else scale.x(span.start)
    has_room = scale.row > SMALLEST_LETTERED and room > DIGIT * len(span.request) + 3
    words = (
        f"Request {span.request} in slot {span.slot + 1}, steps {span.start + 1} to {span.end}: "
        f"prefill of {sum(n for n, _ in span.prefill)} tokens, {span.num_decodes} decode steps"
    )
    outline = Rect(scale.x(span.start), y, span.num_steps * scale.step, scale.row, "paper")
    ink = None if is_tinted else ink_on(colour)
    return SpanBar(
        words, span.request, tuple(parts), outline, left + room / 2 if has_room else None, ink
    )


def _ticks(num_steps: int, scale: _Scale) -> Iterator[tuple[int, float]]:
    """Yields step numbers, from 1, and the middles of their steps."""
    every = next((n for n in TICKS if n * scale.step >= TICK_DISTANCE), num_steps)
    for number in [1, *range(max(every, 2), num_steps + 1, every)]:
        yield number, scale.x(number - 0.5)


def _kinds(y: float, has_pads: bool) -> Iterator[LegendKey]:
    x = 0.0
    for kind, words in KINDS.items():
        if kind != "pad" or has_pads:
            yield LegendKey(x, y, kind, words, "pad" if kind == "pad" else "r0")
            x += 60 + 6 * len(words)


def _requests(notes: Mapping[str, str], colours: Mapping[str, str], y: float) -> Iterator[LegendKey]:
    per_row = WIDTH // LEGEND_COLUMN
    for index, (name, words) in enumerate(notes.items()):
        x = index % per_row * LEGEND_COLUMN
        yield LegendKey(x, y + index // per_row * 24, name, words, colours[name])
