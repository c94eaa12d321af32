"""The page as a whole: what it is, the verdicts, then a section a file, then where all comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batchproof.errors import UsageError
from batchproof.report import markup
from batchproof.report.album import Album
from batchproof.report.campaigns import faults_section, honest_section
from batchproof.report.comparisons import benchmark_section
from batchproof.report.environment import environment_section
from batchproof.report.inputs import Kind, Source
from batchproof.report.promises import conformance_section
from batchproof.report.style import STYLE
from batchproof.report.verdicts import verdict_line

ABOUT = (
    "Batchproof checks that batching in an LLM inference engine changes nothing but speed, and "
    "measures that speed. This page shows result files as they were written: only checked tokens "
    "count, an engine that answered wrongly has no figure, and what is not defined is a dash."
)
FAVICON = '<link rel="icon" href="data:,">'


def page(read: Sequence[Source]) -> str:
    """Self-contained HTML: no script, and nothing that a browser would have to fetch."""
    album, colours = Album(), engine_colours(read)
    anchors = [f"{source.kind.name.lower()}-{index}" for index, source in enumerate(read, start=1)]
    pairs = list(zip(read, anchors, strict=True))
    sections = [_whole(source, _section, anchor, colours, album) for source, anchor in pairs]
    links = [(anchor, f"{s.kind.value} {s.path.name}") for s, anchor in pairs]
    links.append(("environment", "where the figures come from"))
    body = "".join(
        [
            markup.element("h1", "Batchproof report"),
            markup.paragraph(markup.text(ABOUT)),
            markup.bullets((_whole(each, verdict_line) for each in read), "plain"),
            _contents(links),
            *sections,
            environment_section(read, "environment"),
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Batchproof report</title>{FAVICON}<style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def engine_colours(read: Sequence[Source]) -> dict[str, int]:
    """One index an engine, the same in all pictures."""
    names = [
        row["engine"]
        for source in read
        if source.kind is Kind.BENCHMARK
        for rows in (*(each["rows"] for each in source.data["comparisons"]), source.data["growth"])
        for row in rows
    ]
    return {name: index for index, name in enumerate(dict.fromkeys(names))}


def _whole(source: Source, tell: Callable[..., str], *arguments: object) -> str:
    """What is told of a file. Raises `UsageError` where the file lacks what that takes."""
    try:
        return tell(source, *arguments)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"result file '{source.path}' is damaged, for it ends in {what}") from error


def _section(source: Source, anchor: str, colours: dict[str, int], album: Album) -> str:
    if source.kind is Kind.BENCHMARK:
        return benchmark_section(source, anchor, colours, album)
    if source.kind is Kind.CONFORMANCE:
        return conformance_section(source, anchor)
    if source.kind is Kind.FAULTS:
        return faults_section(source, anchor)
    return honest_section(source, anchor)


def _contents(links: Sequence[tuple[str, str]]) -> str:
    items = [markup.element("a", markup.text(name), href=f"#{anchor}") for anchor, name in links]
    return markup.element("nav", markup.bullets(items), aria_label="Contents")
