"""Pictures on the page: each in a frame with its title and caption, and with ids of its own."""

from __future__ import annotations

from collections.abc import Iterable

from batchproof.report import markup
from batchproof.report.canvas import Picture, inline


class Album:
    """Counts the pictures of a page."""

    def __init__(self) -> None:
        self._num_pictures = 0

    def show(self, picture: Picture, class_: str = "") -> str:
        """`class_`: middle (not the whole width) or wide (scrolls on a small screen)."""
        self._num_pictures += 1
        drawing = inline(picture, f"f{self._num_pictures}-")
        return markup.element(
            "figure",
            markup.element("h4", markup.text(picture.title)),
            markup.element("div", drawing, class_="box"),
            markup.element("figcaption", markup.text(picture.caption)),
            **({"class_": class_} if class_ else {}),
        )

    def show_all(self, pictures: Iterable[Picture]) -> str:
        """Side by side where there is room."""
        return markup.element("div", *(self.show(each) for each in pictures), class_="grid")
