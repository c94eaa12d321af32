"""HTML in small parts. What comes from a file goes through `text`; nothing else escapes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def text(value: object) -> str:
    """A value as it may stand in HTML."""
    return escape(str(value), quote=True)


def element(name: str, *content: str, **attributes: str) -> str:
    """`content` is HTML. A trailing underscore in an attribute's name is dropped: `class_`."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value, quote=True)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{told}>{''.join(content)}</{name}>"


def paragraph(*content: str, class_: str = "") -> str:
    return element("p", *content, **({"class_": class_} if class_ else {}))


def chip(word: str, kind: str) -> str:
    """A verdict that does not hang on its colour; `kind`: good, bad, warn or none."""
    return element("span", text(word), class_=f"chip {kind}")


def bullets(items: Iterable[str], class_: str = "") -> str:
    listed = "".join(element("li", each) for each in items)
    return element("ul", listed, **({"class_": class_} if class_ else {})) if listed else ""


def folded(summary: str, *content: str, is_open: bool = False) -> str:
    """Shown when asked for; on paper always."""
    opened = {"open": "open"} if is_open else {}
    return element("details", element("summary", text(summary)), *content, **opened)


def section(anchor: str, title: str, *content: str) -> str:
    return element("section", element("h2", text(title)), *content, id=anchor)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], label: str) -> str:
    """Cells are HTML, `td` and `th` made with `cell`; it scrolls in a box of its own."""
    top = "".join(element("th", each, scope="col") for each in head)
    body = "".join(element("tr", *row) for row in rows)
    whole = element("table", element("thead", element("tr", top)), element("tbody", body))
    # Who has no mouse scrolls with the keys, so the box can be given the focus.
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=label)


def cell(content: str, class_: str = "", title: str = "") -> str:
    given = {"class_": class_, "title": title}
    return element("td", content, **{key: value for key, value in given.items() if value})


def row_head(content: str) -> str:
    return element("th", content, scope="row")
