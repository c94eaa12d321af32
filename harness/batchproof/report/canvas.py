"""Figures drawn by matplotlib, told in the colours of a theme.

matplotlib writes fixed colours. They are drawn in stand-ins here, which become CSS variables inside the
page, so that one picture serves light and dark, and plain colours in a file of its own.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from batchproof.report.theme import FONTS, NUM_SERIES, THEME
from batchproof.report.tidy import tidy

POINTS = 72  # an inch has
LETTER = 6.5  # pixels that one takes, in a small font
STAND_INS = {name: f"#0b{index:02x}5e" for index, name in enumerate(THEME)}
# So that bars and lines are told apart without their colours.
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 3)), (0, (3, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P")
INK, FAINT, GRID = STAND_INS["ink"], STAND_INS["faint"], STAND_INS["grid"]
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: searchable, and set in the reader's font
    "text.parse_math": False,  # a name may hold dollar signs
    "font.family": "DejaVu Sans",  # comes with matplotlib; only for measuring
    "font.size": 11,
    "axes.labelsize": 11,
    "axes.titlesize": 11.5,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "legend.fontsize": 10.5,
    "legend.frameon": False,
    "hatch.linewidth": 1.1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": INK,
    "axes.labelcolor": FAINT,
    "axes.edgecolor": FAINT,
    "axes.titlecolor": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.formatter.useoffset": False,
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing in stand-in colours, with what is said about it. Sizes in CSS pixels."""

    title: str
    caption: str  # a sentence that says what to see
    width: float
    height: float
    body: str  # what stands inside the svg element


def colour(name: str) -> str:
    return STAND_INS[name]


def series(index: int) -> str:
    """The colour of an engine."""
    return STAND_INS[f"s{index % NUM_SERIES}"]


def draw(
    title: str, caption: str, size: tuple[float, float], paint: Callable[[Figure], None]
) -> Picture:
    """`size`: width and height in pixels of an unscaled picture."""
    with mpl.rc_context(SETTINGS):
        figure = Figure((size[0] / POINTS, size[1] / POINTS), layout="constrained")
        paint(figure)
        file = io.StringIO()
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
    return Picture(title, caption, *size, tidy(file.getvalue()).replace("'DejaVu Sans'", "var(--sans)"))


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between the two, the closer together the less they span."""
    steps = (1, 1.5, 2, 3, 5, 7) if high < 12 * low else (1, 2, 5) if high < 400 * low else (1,)
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    return [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]


def label_log(axis: Axis, low: float, high: float) -> None:
    """Plain numbers on a logarithmic axis."""
    ticks = log_ticks(low, high)
    axis.set_ticks(ticks, [f"{tick:,.4g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def grid(axes: Axes, axis: str) -> None:
    """Lines across one axis, and no ticks on it beside them."""
    axes.grid(axis=axis, which="major")  # type: ignore[arg-type]
    axes.tick_params(length=3)


def inline(picture: Picture, prefix: str) -> str:
    """For the page: colours are variables, and ids have a prefix, since figures share a document."""
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", picture.body)
    for name, stand_in in STAND_INS.items():
        body = body.replace(stand_in, f"var(--{name})")
    return (
        f'<svg role="img" aria-label="{_label(picture)}" '
        f'viewBox="0 0 {picture.width:g} {picture.height:g}">{body}</svg>'
    )


def standalone(picture: Picture, note: str) -> str:
    """A file of its own on white, with its title and a note (the machine, say) above."""
    margin, ink, faint = 14, THEME["ink"][0], THEME["faint"][0]
    notes = textwrap.wrap(note, int(picture.width / LETTER))
    head = 40 + 15 * len(notes)
    width, height = picture.width + 2 * margin, picture.height + head + margin
    words = _text(margin, 26, picture.title, ink, "600 16px")
    words += "".join(
        _text(margin, 44 + 15 * place, line, faint, "11px") for place, line in enumerate(notes)
    )
    body = picture.body.replace("var(--sans)", FONTS)
    for name, stand_in in STAND_INS.items():
        body = body.replace(stand_in, THEME[name][0])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{_label(picture)}" '
        f'stroke-linejoin="round"><rect width="{width:g}" height="{height:g}" rx="8" fill="#ffffff"/>'
        f'{words}<g transform="translate({margin} {head})">{body}</g></svg>\n'
    )


def _label(picture: Picture) -> str:
    return escape(f"{picture.title}. {picture.caption}")


def _text(x: float, y: float, words: str, ink: str, font: str) -> str:
    style = f"font: {font} {FONTS}"
    return f'<text x="{x:g}" y="{y:g}" fill="{ink}" style="{style}">{escape(words)}</text>'
