"""The colours of pages, and charts that matplotlib draws as SVG.

A chart is drawn in the light colours. In a page they become CSS variables, so that one chart serves the
light and the dark theme.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

# name -> (light, dark). Series are Paul Tol's "bright" scheme, distinct with any kind of colour vision.
THEME = {
    "ink": ("#1f2328", "#e6edf3"),
    "faint": ("#59636e", "#9aa4af"),
    "grid": ("#dce1e6", "#30363d"),
    "page": ("#f6f8fa", "#0d1117"),
    "paper": ("#ffffff", "#161b22"),
    "idle": ("#f3f4f6", "#1c222a"),
    "good": ("#1a7f37", "#56d364"),
    "warn": ("#8a5a00", "#e3b341"),
    "bad": ("#c1121f", "#ff7b72"),
    "s0": ("#4477aa", "#6fa8dc"),
    "s1": ("#ee6677", "#ff8793"),
    "s2": ("#228833", "#4fb866"),
    "s3": ("#b8a630", "#dccb5a"),
    "s4": ("#3fa9cc", "#7fd6f2"),
    "s5": ("#aa3377", "#db6fa8"),
}
LIGHT = {name: shades[0] for name, shades in THEME.items()}
SERIES = tuple(LIGHT[f"s{index}"] for index in range(6))
FONTS = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
FONT = "DejaVu Sans"  # comes with matplotlib; it only measures text
POINTS_PER_INCH = 72
LETTER = 5.6  # points that a letter of a note takes
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: searchable, and set in the reader's font
    "text.parse_math": False,  # a name may hold dollar signs
    "font.family": FONT,
    "font.size": 11,
    "axes.titlesize": 11.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "text.color": LIGHT["ink"],
    "axes.titlecolor": LIGHT["ink"],
    "axes.labelcolor": LIGHT["faint"],
    "axes.edgecolor": LIGHT["faint"],
    "xtick.color": LIGHT["faint"],
    "ytick.color": LIGHT["faint"],
    "grid.color": LIGHT["grid"],
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure that is drawn on demand. `width` and `height` are in points; the caption is a sentence
    that says what to see."""

    title: str
    caption: str
    width: float
    height: float
    draw: Callable[[Figure], None]

    def in_page(self) -> str:
        """Returns an svg element for a page that defines the colours as variables.

        Ids of groups are dropped, since charts of one page would share them; others are hashes, salted
        with the title.
        """
        svg = self._svg("")
        svg = re.sub(r"<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
        svg = re.sub(r"<g id=\"[^\"]*\"", "<g", svg)
        for name, colour in LIGHT.items():
            svg = svg.replace(colour, f"var(--{name})")
        size = re.compile(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>')
        label = escape(f"{self.title}. {self.caption}")
        width = f"width:{1.2 * self.width:.0f}px"
        root = f'<svg role="img" aria-label="{label}" viewBox="\\1" style="{width}">'
        return size.sub(root, svg, count=1).replace(f"'{FONT}'", "var(--sans)")

    def standalone(self, note: str) -> str:
        """Returns an SVG file on white, with the title above and a note, such as the machine, below."""
        return self._svg(note).replace(f"'{FONT}'", FONTS)

    def _svg(self, note: str) -> str:
        with mpl.rc_context(SETTINGS | {"svg.hashsalt": self.title}):
            size = (self.width / POINTS_PER_INCH, self.height / POINTS_PER_INCH)
            figure = Figure(size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
            self.draw(figure)
            if note:
                figure.suptitle(self.title, x=0.01, ha="left", fontweight="bold")
                lines = textwrap.fill(note, int(self.width / LETTER))
                figure.supxlabel(lines, x=0.01, ha="left", fontsize=9, color=LIGHT["faint"])
            file = io.StringIO()
            no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(file, format="svg", transparent=not note, metadata=no_metadata)
        return re.sub(r"(?<!>)\n *", " ", file.getvalue())  # a line is an element, not a point


def write_beside(
    axes: Axes, place: int, text: str, colour: str, *, is_left: bool = True, **look: Any
) -> None:
    """Writes text left or right of a row of the axes."""
    axes.annotate(
        text,
        (0 if is_left else 1, place),
        (-9 if is_left else 10, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right" if is_left else "left",
        va="center",
        color=colour,
        annotation_clip=False,
        **look,
    )
