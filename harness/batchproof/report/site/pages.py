"""All files of a site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from batchproof.drawing.picture import templates
from batchproof.drawing.theme import FONTS, THEME
from batchproof.report.campaigns import faults, honest
from batchproof.report.conformance_tables import conformance
from batchproof.report.engine_verdicts import TITLES, summary
from batchproof.report.file_origins import Fact, origin
from batchproof.report.inputs import Kind, Source, made_of
from batchproof.report.site import matrix, speed
from batchproof.report.site.findings import attachments, findings, scripts
from batchproof.report.site.history import Engine, Judged, engines_of
from batchproof.report.site.inputs import Found
from batchproof.report.site.standing import BUILT_IN, Standings
from batchproof.report.site.verdict_facts import findings_by_verdict, verdict_facts
from batchproof.report.verdicts import Verdict
from batchproof.report.verdicts import verdict as line_of
from batchproof.report.words import many
from batchproof.requirements.promises import Promise

TABLES: Mapping[Kind, Any] = {
    Kind.CONFORMANCE: ("conformance.html.jinja", "Conformance", conformance),
    Kind.FAULTS: ("faults.html.jinja", "Planted faults", faults),
    Kind.HONEST: ("honest.html.jinja", "False alarms", honest),
}


@dataclass(frozen=True, slots=True)
class Section:
    """A file that the report shows in the same way."""

    title: str
    template: str
    content: object
    verdict: Verdict
    facts: tuple[Fact, ...]


def pages(found: Found) -> dict[str, bytes]:
    """Returns the content of each file by its name in the folder. Raises `UsageError` for a damaged
    file.
    """
    return dict(sorted(_Site(found).files()))


class _Site:
    def __init__(self, found: Found) -> None:
        self._found = found
        self._engines = engines_of(found.verdicts)
        self._benchmarks = found.of(Kind.BENCHMARK)
        self._sections = [_section(each) for kind in TABLES for each in found.of(kind)]
        self._environment = templates("batchproof.report")
        self._pages = {"index.html": "Engines"}
        if self._benchmarks or found.invariance:
            self._pages["speed.html"] = "Speed"
        if self._sections:
            self._pages[BUILT_IN] = "Built-in"

    def files(self) -> Iterator[tuple[str, bytes]]:
        style = self._environment.get_template("site/site.css.jinja")
        yield "site.css", style.render(theme=THEME, fonts=Markup(FONTS)).encode()
        yield self._page("index.html", "index", "Engines and promises", **self._index())
        if "speed.html" in self._pages:
            yield self._page("speed.html", "speed", "Speed and grades", **self._speed())
        if BUILT_IN in self._pages:
            yield self._page(BUILT_IN, "built_in", "Built-in engines", sections=self._sections)
        for engine in self._engines:
            rows = tuple(matrix.matrix_rows(engine, engine.judged, "../"))
            table = findings_by_verdict(engine)
            yield self._page(engine.page, "engine", engine.product, rows=rows, findings=table)
            for judged in engine.judged:
                yield from attachments(judged)
                yield self._verdict_page(engine, judged)

    def _page(self, address: str, template: str, title: str, **values: object) -> tuple[str, bytes]:
        page = self._environment.get_template(f"site/{template}.html.jinja")
        root = "../" * address.count("/")
        common = {"title": title, "root": root, "here": address, "pages": self._pages}
        return address, page.render(**common, promises=Promise, **values).encode()

    def _index(self) -> dict[str, object]:
        newest = [each for engine in self._engines for each in engine.newest]
        rows = [row for each in self._engines for row in matrix.matrix_rows(each, each.newest, "")]
        return {
            "rows": rows,
            "engines": many(len(self._engines), "engine"),
            "num_answers": sum(each.verdict.totals.num_requests for each in newest),
            "last": max((each.date for each in newest), default=""),
            "legend": matrix.legend(rows),
            "tallies": {promise.id: _tally(promise.id, newest) for promise in Promise},
            "sections": self._sections,
        }

    def _speed(self) -> dict[str, object]:
        standings = Standings(self._engines, self._found.of(Kind.CONFORMANCE))
        records = [each.record for each in self._found.invariance]
        widest = speed.widest(self._benchmarks)
        return {
            "side": speed.side_by_side(widest, records, standings),
            "side_of": widest and speed.benchmark_file(widest, standings),
            "files": [speed.benchmark_file(each, standings) for each in self._benchmarks],
            "grades": [
                (each.record, speed.grade_tables(each.record)) for each in self._found.invariance
            ],
            "meanings": speed.GRADES,
        }

    def _verdict_page(self, engine: Engine, judged: Judged) -> tuple[str, bytes]:
        return self._page(
            f"{judged.page}/index.html",
            "verdict",
            judged.verdict.title,
            engine=engine,
            verdict=judged.verdict,
            summary=tuple(summary(judged.verdict)),
            facts=verdict_facts(judged.verdict),
            titles=TITLES,
            kinds={verdict: kind for verdict, (_, kind) in matrix.WORDS.items()},
            findings=findings(judged),
            unshown=[(each, scripts(judged, each)) for each in judged.verdict.unshown],
        )


def _section(source: Source) -> Section:
    template, title, make = TABLES[source.kind]
    content, verdict = made_of(source, make), made_of(source, line_of)
    return Section(title, template, content, verdict, made_of(source, origin).facts)


def _tally(promise: str, judged: Sequence[Judged]) -> tuple[int, int]:
    """Returns how many verdicts hold a promise, and how many break it or differ."""
    return (
        sum(promise in each.verdict.held for each in judged),
        sum(promise in (*each.verdict.broken, *each.verdict.differing) for each in judged),
    )
