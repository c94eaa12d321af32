"""A page as its tests read it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br"}


class Html(HTMLParser):
    """Every element must be closed by its own end tag; attributes and visible words are collected."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(key, value or "") for key, value in attrs]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag, f"</{tag}> ends another element"

    def handle_data(self, data: str) -> None:
        self.words.append(data)
