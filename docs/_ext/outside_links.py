"""Sphinx extension: links from a page to a file of the repository outside `docs/`.

On GitHub they lead to the file. On the site they lead to `source_url` where that is configured, and are
plain text where it is not. Images are left alone: Sphinx copies them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^):#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def rewritten(text: str, page: Path, docs: Path, source_url: str) -> str:
    """Returns the Markdown of a page with its links to files outside the folder `docs` changed.

    Raises `ValueError` for a link that leaves the repository.
    """

    def link(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        path = (page.parent / target).resolve()
        if path.is_relative_to(docs):
            return match[0]
        place = path.relative_to(docs.parent).as_posix()
        return f"[{words}]({source_url.rstrip('/')}/{place}{anchor})" if source_url else words

    parts = FENCE.split(text)  # what stands in code is no link
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(name))
    docs = Path(app.srcdir).resolve()
    source[0] = rewritten(source[0], page.resolve(), docs, app.config.source_url)


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the configuration value and the change."""
    app.add_config_value("source_url", "", "env")
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
