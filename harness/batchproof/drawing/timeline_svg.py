"""Slot timelines as one self-contained SVG: a panel an engine, a row a slot, one scale in steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from batchproof.drawing.timeline import Cell, Timeline

# Paul Tol's "muted" scheme, told apart with any kind of colour vision; the letters say the rest.
PALETTE = (
    "#332288",
    "#88ccee",
    "#cc6677",
    "#ddcc77",
    "#117733",
    "#aa4499",
    "#44aa99",
    "#882255",
    "#999933",
)
WIDTH = 900
LEFT, RIGHT = 74, 24  # beside the plot
INK, FAINT, PAPER, BARRIER = "#1f2328", "#59636e", "#ffffff", "#c1121f"
TINT = 0.45  # share of the full colour in a decode bar
LETTER_WIDTH = 11  # a narrower bar carries none
LEGEND_COLUMN = 106
STYLE = f"""
  text {{ font-family: system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: {INK}; }}
  .title {{ font-size: 19px; font-weight: 600; }}
  .panel {{ font-size: 15px; font-weight: 600; }}
  .small {{ font-size: 12.5px; fill: {FAINT}; }}
  .letter {{ font-size: 13px; font-weight: 600; text-anchor: middle; }}
  .tick {{ font-size: 12px; fill: {FAINT}; text-anchor: middle; }}
  .barrier {{ font-size: 12px; fill: {BARRIER}; text-anchor: end; }}
"""
DEFINITIONS = f"""<defs>
<pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
  <rect width="6" height="6" fill="#f3f4f6"/>
  <line x1="0" y1="0" x2="0" y2="6" stroke="#b6bdc6" stroke-width="2.4"/>
</pattern>
</defs>
<style>{STYLE}</style>"""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Pixels: how wide a step and how high a slot is."""

    step: float
    slot: int

    def x(self, step: float) -> float:
        """Where a step (from 0) begins."""
        return LEFT + step * self.step


def timeline_svg(
    timelines: Mapping[str, Timeline], sizes: Mapping[str, tuple[int, int]], title: str, subtitle: str
) -> str:
    """The picture as text. `sizes`: prompt and new tokens of each request, by its id (a letter)."""
    longest = max(timeline.num_steps for timeline in timelines.values())
    num_slots = max(len(timeline.cells[0]) for timeline in timelines.values())
    scale = _Scale((WIDTH - LEFT - RIGHT) / longest, 28 if num_slots <= 8 else 18)
    colours = {each: PALETTE[i % len(PALETTE)] for i, each in enumerate(sizes)}
    parts = [_text(24, 34, title, "title"), _text(24, 55, subtitle, "small")]
    y = 88.0
    for name, timeline in timelines.items():
        panel, y = _panel(name, timeline, scale, colours, y)
        parts += panel
    legend, y = _legend(sizes, colours, y)
    height = round(y + 12)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img" aria-label={quoteattr(title)}>',
            DEFINITIONS,
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{PAPER}"/>',
            *parts,
            *legend,
            "</svg>\n",
        ]
    )


def _panel(
    name: str, timeline: Timeline, scale: _Scale, colours: Mapping[str, str], y: float
) -> tuple[list[str], float]:
    """One engine from height `y` on; returns the height below it as well."""
    num_slots = len(timeline.cells[0])
    heading = f"{name.capitalize()} batching: {timeline.num_steps} steps"
    occupancy = (
        f"{timeline.num_busy} of {timeline.num_slot_steps} slot-steps busy ({timeline.occupancy:.0%})"
    )
    parts = [
        _text(24, y, heading, "panel"),
        _text(WIDTH - RIGHT, y, occupancy, "small", "text-anchor:end"),
    ]
    top = y + (30 if timeline.barriers else 14)
    for slot in range(num_slots):
        row_y = top + slot * (scale.slot + 4)
        parts.append(_text(24, row_y + scale.slot * 0.5 + 4.5, f"slot {slot + 1}", "small"))
        parts += _row(timeline.row(slot), slot, row_y, scale, colours)
    bottom = top + num_slots * (scale.slot + 4) - 4
    parts += _barriers(timeline.barriers, top, bottom, scale)
    parts += _axis(timeline.num_steps, bottom, scale)
    return parts, bottom + 54


def _row(
    cells: Sequence[Cell | None], slot: int, y: float, scale: _Scale, colours: Mapping[str, str]
) -> list[str]:
    """One slot: hatched where idle, a bar for each tenant."""
    width = len(cells) * scale.step
    parts = [_rect(scale.x(0), y, width, scale.slot, "url(#idle)")]
    start = 0
    for owner, group in groupby(cells, key=lambda cell: cell.request_id if cell else None):
        tenancy = list(group)
        if owner is not None:
            bar = [cell for cell in tenancy if cell is not None]
            parts += _bar(bar, start, slot, y, scale, colours[owner])
        start += len(tenancy)
    return parts


def _bar(
    cells: Sequence[Cell], start: int, slot: int, y: float, scale: _Scale, colour: str
) -> list[str]:
    """One stay of a request in a slot: its prefill in full colour, its decodes in a tint."""
    owner = cells[0].request_id
    num_prefills = sum(cell.is_prefill for cell in cells)
    prompt = sum(cell.num_tokens for cell in cells if cell.is_prefill)
    told = (
        f"{owner}: slot {slot + 1}, steps {start + 1} to {start + len(cells)}; "
        f"prefill of {prompt} tokens, {len(cells) - num_prefills} decode steps"
    )
    parts = [f"<g><title>{escape(told)}</title>"]
    wide = 0.0
    for is_prefill, group in groupby(cells, key=lambda cell: cell.is_prefill):
        count = len(list(group))
        fill = colour if is_prefill else _mixed(colour, TINT)
        x, width = scale.x(start), count * scale.step
        parts.append(_rect(x, y, width, scale.slot, fill))
        if width > max(wide, LETTER_WIDTH):
            wide, middle, ink = width, x + width / 2, _ink_on(fill)
        start += count
    x = scale.x(start - len(cells))
    parts.append(_rect(x, y, len(cells) * scale.step, scale.slot, "none", stroke=PAPER))
    if wide:
        parts.append(_text(middle, y + scale.slot * 0.5 + 4.7, owner, "letter", f"fill:{ink}"))
    return [*parts, "</g>"]


def _barriers(barriers: Sequence[int], top: float, bottom: float, scale: _Scale) -> list[str]:
    """A dashed line behind each wave, named where there is room for the words."""
    parts = []
    free_from = float(LEFT)
    for barrier in barriers:
        x = scale.x(barrier + 1)
        parts.append(
            f'<line x1="{x:.1f}" y1="{top - 14:.1f}" x2="{x:.1f}" y2="{bottom + 5:.1f}" '
            f'stroke="{BARRIER}" stroke-width="2" stroke-dasharray="5 3"/>'
        )
        if x - free_from > 82:
            parts.append(_text(x - 5, top - 5, "batch barrier", "barrier"))
        free_from = x
    return parts


def _axis(num_steps: int, y: float, scale: _Scale) -> list[str]:
    """Step numbers, from 1, below the middle of their steps."""
    every = next(n for n in (1, 5, 10, 20, 50, 100, 200, 500, 1000, num_steps) if n * scale.step >= 36)
    ticks = [1, *range(max(every, 2), num_steps + 1, every)] if every < num_steps else [1]
    parts = [_text(24, y + 18, "step", "small")]
    for tick in ticks:
        x = scale.x(tick - 0.5)
        parts.append(
            f'<line x1="{x:.1f}" y1="{y + 2:.1f}" x2="{x:.1f}" y2="{y + 6:.1f}" stroke="{FAINT}"/>'
        )
        parts.append(_text(x, y + 18, str(tick), "tick"))
    return parts


def _legend(
    sizes: Mapping[str, tuple[int, int]], colours: Mapping[str, str], y: float
) -> tuple[list[str], float]:
    """What the marks mean, then each request with its sizes; and the height below."""
    sample = next(iter(colours.values()))
    parts: list[str] = []
    for x, fill, words in (
        (24, sample, "prefill: prompt tokens are fed"),
        (330, _mixed(sample, TINT), "decode: one token a step"),
        (560, "url(#idle)", "idle: nothing useful is computed"),
    ):
        parts += [_rect(x, y - 11, 22, 14, fill), _text(x + 29, y, words, "small")]
    parts.append(_text(24, y + 26, "Requests, with prompt tokens + new tokens:", "small"))
    per_row = (WIDTH - 48) // LEGEND_COLUMN
    for index, (request_id, (prompt, new)) in enumerate(sizes.items()):
        x, row_y = 24 + index % per_row * LEGEND_COLUMN, y + 50 + index // per_row * 24
        colour = colours[request_id]
        parts.append(_rect(x, row_y - 14, 20, 18, colour))
        parts.append(_text(x + 10, row_y - 0.5, request_id, "letter", f"fill:{_ink_on(colour)}"))
        parts.append(_text(x + 27, row_y, f"{prompt} + {new}", "small"))
    return parts, y + 50 + (len(sizes) - 1) // per_row * 24


def _rect(x: float, y: float, width: float, height: float, fill: str, stroke: str = "") -> str:
    line = f' stroke="{stroke}" stroke-width="1.5"' if stroke else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"{line}/>'
    )


def _text(x: float, y: float, words: str, kind: str, style: str = "") -> str:
    own = f' style="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}"{own}>{escape(words)}</text>'


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _mixed(colour: str, share: float) -> str:
    """The colour diluted with the paper's white."""
    return "#" + "".join(f"{round(255 + (c - 255) * share):02x}" for c in _channels(colour))


def _ink_on(colour: str) -> str:
    """White on dark colours, else the ink (perceived brightness after ITU-R BT.601)."""
    red, green, blue = _channels(colour)
    return PAPER if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else INK
