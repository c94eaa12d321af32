"""Figures drawn by matplotlib in the colours of the theme.

matplotlib writes fixed colours. Charts are drawn in stand-ins here, which are replaced by the colours
of the page or file, so that one picture serves the light and the dark theme.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from batchproof.drawing.picture import Paint, Picture
from batchproof.drawing.theme import NUM_SERIES, THEME
from batchproof.report.words import shortened

POINTS_PER_INCH = 72
FONT = "DejaVu Sans"  # comes with matplotlib; only for measuring
HREF = "{http://www.w3.org/1999/xlink}href"
STAND_INS = {name: f"#0b{index:02x}5e" for index, name in enumerate(THEME)}
# Bars and lines differ in more than their colours.
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 3)), (0, (3, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P")
INK, FAINT, GRID = STAND_INS["ink"], STAND_INS["faint"], STAND_INS["grid"]
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: searchable, and set in the reader's font
    "text.parse_math": False,  # a name may hold dollar signs
    "font.family": FONT,
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
class Chart(Picture):
    """A figure that is drawn when a page or a file needs it, in pixels of an unscaled picture."""

    draw: Callable[[Figure], None]

    def body(self, paint: Paint, ids: str) -> str:
        """Returns the figure as the content of an svg element."""
        # matplotlib derives ids from contents and salt, so that equal charts get equal ids.
        with mpl.rc_context(SETTINGS | {"svg.hashsalt": ids}):
            size = (self.width / POINTS_PER_INCH, self.height / POINTS_PER_INCH)
            figure = Figure(size, layout="constrained")
            self.draw(figure)
            file = io.StringIO()
            no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
        drawn = _content(file.getvalue()).replace(f"'{FONT}'", paint("sans"))
        for name, stand_in in STAND_INS.items():
            drawn = drawn.replace(stand_in, paint(name))
        return drawn


def _content(svg: str) -> str:
    """Returns the content of the root element without what would leak into a page: its style sheet,
    ids that nothing refers to, and namespaces.
    """
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        if element.tag == "g":
            element.attrib.pop("id", None)
        if HREF in element.attrib:
            element.set("href", element.attrib.pop(HREF))
        if "d" in element.attrib:
            element.set("d", " ".join(map(_rounded, element.attrib["d"].split())))
        element.text = element.text if element.tag == "text" else None
        element.tail = None
    for definitions in root.findall("defs"):
        for style in definitions.findall("style"):
            definitions.remove(style)
    return "".join(ElementTree.tostring(child, encoding="unicode") for child in root)


def _rounded(token: str) -> str:
    """Returns a command of a path, or a number with five significant digits."""
    return token if token.isalpha() else f"{float(token):.5g}"


def colour(name: str) -> str:
    """Returns the stand-in for a colour of the theme."""
    return STAND_INS[name]


def series(index: int) -> str:
    """Returns the colour of an engine."""
    return STAND_INS[f"s{index % NUM_SERIES}"]


def log_ticks(low: float, high: float) -> list[float]:
    """Returns round numbers between the two, the denser the narrower the range."""
    steps = (1, 1.5, 2, 3, 5, 7) if high < 12 * low else (1, 2, 5) if high < 400 * low else (1,)
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    return [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]


def label_log(axis: Axis, low: float, high: float) -> None:
    """Labels a logarithmic axis with plain numbers."""
    ticks = log_ticks(low, high)
    axis.set_ticks(ticks, [f"{tick:,.4g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def label_plainly(axis: Axis) -> None:
    """Labels a linear axis with plain numbers."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))


def legend_name(engine: str) -> str:
    """Returns the name for a legend, which leaves out what begins with an underscore."""
    return shortened(engine).lstrip("_")


def grid(axes: Axes, axis: str) -> None:
    """Draws lines across one axis, and no ticks on it beside them."""
    axes.grid(axis=axis, which="major")  # type: ignore[arg-type]
    axes.tick_params(length=3)


def beside(
    axes: Axes, place: int, words: str, ink: str, *, is_left: bool = True, line: int = 0, **look: str
) -> None:
    """Writes text left or right of a row. `line`: 1 above its middle, -1 below, 0 on it."""
    axes.annotate(
        words,
        (0 if is_left else 1, place),
        (-9 if is_left else 10, 1.5 * line),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right" if is_left else "left",
        va=("center", "bottom", "top")[line],
        color=ink,
        annotation_clip=False,
        **look,  # type: ignore[arg-type]
    )
