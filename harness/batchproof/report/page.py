"""The page as a whole: the verdicts, then one section per file, then the origin of the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from markupsafe import Markup

from batchproof.drawing.picture import Picture, templates
from batchproof.drawing.theme import FONTS, THEME, in_page
from batchproof.report.campaigns import Faults, Honest, faults, honest
from batchproof.report.comparisons import Benchmark, benchmark
from batchproof.report.conformance_tables import Conformance, conformance
from batchproof.report.file_origins import FileOrigin, origin
from batchproof.report.inputs import Kind, Source, made_of
from batchproof.report.verdicts import Verdict, verdict

TITLES = {
    Kind.BENCHMARK: "Benchmark",
    Kind.CONFORMANCE: "Conformance",
    Kind.FAULTS: "Planted faults",
    Kind.HONEST: "False alarms",
}
Content = Benchmark | Conformance | Faults | Honest
CONTENTS: dict[Kind, Callable[..., Content]] = {
    Kind.BENCHMARK: benchmark,
    Kind.CONFORMANCE: conformance,
    Kind.FAULTS: faults,
    Kind.HONEST: honest,
}


@dataclass(frozen=True, slots=True)
class Section:
    """One file. `template` renders its content."""

    anchor: str
    title: str
    link: str
    template: str
    content: Content


@dataclass(frozen=True, slots=True)
class Page:
    """All values of the page."""

    verdicts: tuple[Verdict, ...]
    sections: tuple[Section, ...]
    origins: tuple[FileOrigin, ...]


def page(read: Sequence[Source]) -> Page:
    """Returns all values of the page; its pictures are drawn when it is rendered. Raises `UsageError`
    if a file lacks what the page needs.
    """
    colours = engine_colours(read)
    return Page(
        tuple(made_of(source, verdict) for source in read),
        tuple(_section(source, index, colours) for index, source in enumerate(read, start=1)),
        tuple(made_of(source, origin) for source in read),
    )


def rendered(shown: Page) -> str:
    """Returns self-contained HTML: no script, and nothing that a browser would have to fetch."""
    numbers = count(1)

    def body(picture: Picture) -> Markup:
        return Markup(picture.body(in_page, f"f{next(numbers)}-"))

    template = templates(__package__).get_template("page.html.jinja")
    return template.render(page=shown, body=body, theme=THEME, fonts=Markup(FONTS))


def engine_colours(read: Sequence[Source]) -> dict[str, int]:
    """Returns an index for each engine, the same in all pictures."""
    names = [
        row["engine"]
        for source in read
        if source.kind is Kind.BENCHMARK
        for rows in (
            *(each["rows"] for each in source.data["comparisons"]),
            source.data["growth"],
        )
        for row in rows
    ]
    return {name: index for index, name in enumerate(dict.fromkeys(names))}


def _section(source: Source, index: int, colours: Mapping[str, int]) -> Section:
    name = source.kind.name.lower()
    own = (colours,) if source.kind is Kind.BENCHMARK else ()
    return Section(
        f"{name}-{index}",
        f"{TITLES[source.kind]} {source.path.name}",
        f"{source.kind.value} {source.path.name}",
        f"{name}.html.jinja",
        made_of(source, lambda source: CONTENTS[source.kind](source, *own)),
    )
