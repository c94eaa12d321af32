"""The frame of pictures. A picture names its colours; the page or file that holds it defines them."""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from batchproof.drawing.theme import on_white

Paint = Callable[[str], str]  # name of a colour, or "sans" for the font -> its value in SVG
LETTER = 6.5  # pixels that a letter of a note takes


@dataclass(frozen=True, slots=True)
class Picture(ABC):
    """A drawing with a caption. `width` and `height` are CSS pixels; the caption is a sentence that
    says what to see.
    """

    title: str
    caption: str
    width: float
    height: float

    @abstractmethod
    def body(self, paint: Paint, ids: str) -> str:
        """Returns the content of the svg element. `ids` begins every id, because pictures share a
        document.
        """


@cache
def templates(package: str) -> Environment:
    """Returns the templates of a package. All values are escaped, and a missing one raises."""
    made = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["px"] = lambda length: f"{round(length, 1):g}"
    return made


def standalone(picture: Picture, note: str) -> str:
    """Returns an SVG file on white, with the title and a note (such as the machine) above the
    picture.
    """
    return (
        templates(__package__)
        .get_template("standalone.svg.jinja")
        .render(
            picture=picture,
            notes=textwrap.wrap(note, int(picture.width / LETTER)),
            body=picture.body(on_white, ""),
            paint=on_white,
        )
    )
