"""All files of a site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from batchproof.bench.tables import table
from batchproof.errors import UsageError
from batchproof.records.texts import counted
from batchproof.records.verdict import PromiseResult
from batchproof.requirements.promises import Promise
from batchproof.site.facts import Fact, benchmark_facts, verdict_facts
from batchproof.site.findings import attachments, findings, scripts
from batchproof.site.history import Engine, Judged, engines_of
from batchproof.site.inputs import BenchmarkFile, SiteInputs
from batchproof.site.verdict_summary import TITLES, summary

TITLES_OF_PAGES = {"index.html": "Verdicts", "benchmarks.html": "Benchmarks"}
STYLE = Path(__file__).parent / "site.css"


def pages(inputs: SiteInputs) -> dict[str, bytes]:
    """Returns the content of each file by its name in the folder. Raises `UsageError` for a damaged
    file.
    """
    engines = engines_of(inputs.verdicts)
    values: dict[str, dict[str, object]] = {"index.html": _index(engines)}
    if inputs.benchmarks:
        values["benchmarks.html"] = {"files": [benchmark(each) for each in inputs.benchmarks]}
    renderer = _Renderer({name: TITLES_OF_PAGES[name] for name in values})
    files = {"site.css": STYLE.read_bytes()}
    for name, each in values.items():
        files[name] = renderer.page(name, name.removesuffix(".html"), TITLES_OF_PAGES[name], each)
    for judged in (each for engine in engines for each in engine.judged):
        files |= attachments(judged)
        address, values_of_verdict = f"{judged.page}/index.html", _verdict(judged)
        files[address] = renderer.page(address, "verdict", judged.verdict.title, values_of_verdict)
    return dict(sorted(files.items()))


class _Renderer:
    """Renders templates. All values are escaped, and a missing one raises."""

    def __init__(self, titles: dict[str, str]) -> None:
        """`titles`: those of the pages in the navigation, by address."""
        self._environment = Environment(
            loader=PackageLoader("batchproof.site"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals.update(pages=titles, promises=list(Promise))

    def page(self, address: str, template: str, title: str, values: dict[str, object]) -> bytes:
        common = {"title": title, "root": "../" * address.count("/"), "here": address}
        return self._environment.get_template(f"{template}.html.jinja").render(common | values).encode()


def _index(engines: Sequence[Engine]) -> dict[str, object]:
    newest = [judged for each in engines for judged in each.newest]
    rows = list(matrix_rows(newest))
    return {
        "rows": rows,
        "earlier": [each for engine in engines for each in engine.judged if each not in newest],
        "engines": counted(len(engines), "engine"),
        "num_answers": sum(each.verdict.totals.num_requests for each in newest),
        "last": max((each.date for each in newest), default=""),
        "legend": legend(rows),
        "tallies": {promise.id: _tally(promise.id, newest) for promise in Promise},
    }


def _tally(promise: str, judged: Sequence[Judged]) -> tuple[int, int]:
    """Returns how many verdicts hold a promise, and how many break it or differ."""
    return (
        sum(promise in each.verdict.held for each in judged),
        sum(promise in (*each.verdict.broken, *each.verdict.differing) for each in judged),
    )


def _verdict(judged: Judged) -> dict[str, object]:
    verdict = judged.verdict
    return {
        "verdict": verdict,
        "summary": list(summary(verdict)),
        "facts": list(verdict_facts(verdict)),
        "titles": TITLES,
        "kinds": {name: kind for name, (_, kind) in WORDS.items()},
        "findings": findings(judged),
        "unshown": [(each, scripts(judged, each)) for each in verdict.unshown],
    }


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark file. `about`: when and on what it was measured; `tables`: what its run printed."""

    name: str
    about: str
    facts: tuple[Fact, ...]
    tables: str


def benchmark(file: BenchmarkFile) -> Benchmark:
    """Returns what is shown of a file. Raises `UsageError` if it lacks a figure that every row of a
    benchmark has."""
    try:
        device = file.data["header"]["device"]
        where = str(file.made.machine) if device["type"] == "cpu" else device["name"]
        lines = table(file.data["comparisons"], file.data["growth"])
        about = f"{where}, {file.made.date}"
        return Benchmark(file.path.name, about, tuple(benchmark_facts(file)), "\n".join(lines))
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"result file '{file.path}' is damaged, for it ends in {what}") from error


@dataclass(frozen=True, slots=True)
class TableCell:
    """One cell. `under` is a smaller line below the text; `title` is shown when the mouse rests on
    the cell."""

    text: str
    kind: str  # as of a chip
    title: str
    href: str = ""
    under: str = ""


WORDS = {  # of a promise's result -> the word in its cell, and its kind
    "held": ("held", "good"),
    "broken": ("broken", "bad"),
    "differs by design": ("differs", "warn"),
    "known failures": ("known", "warn"),
    "incomplete": ("incomplete", "warn"),
    "undecided": ("undecided", "warn"),
}
NOT_IN_SUITE = TableCell("–", "none", "no test of that day's suite")
LEGEND = (
    ("good", "held", "all its tests passed, and their number"),
    ("bad", "broken", "tests failed: how many of those that could be run; leads to the first finding"),
    ("warn", "differs", "tests failed, and the engine's documentation states that behaviour"),
    ("warn", "known", "tests failed as those who ran them expected"),
    ("warn", "incomplete", "tests that it needs were not run"),
    ("warn", "undecided", "a test of it was ended by another promise that broke, on every model"),
    ("none", "no cap", "not tested: the engine lacks a capability that the tests need"),
    ("none", "refused", "not tested: the engine does not serve the models"),
    ("none", NOT_IN_SUITE.text, "the suite of that day had no test of it"),
)


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """A verdict as a row. `page` is the address of its page."""

    judged: Judged
    page: str
    cells: tuple[TableCell, ...]


def matrix_rows(judged: Iterable[Judged]) -> Iterator[MatrixRow]:
    """Yields a row for each verdict."""
    for each in judged:
        page = f"{each.page}/index.html"
        yield MatrixRow(each, page, tuple(_cell(each, promise.id, page) for promise in Promise))


def _cell(judged: Judged, promise_id: str, page: str) -> TableCell:
    result = judged.verdict.promises.get(promise_id)
    if result is None:
        return NOT_IN_SUITE
    word, kind = WORDS.get(result.verdict, (result.verdict, "none"))
    tried = result.passed + result.failed
    count = f"{result.failed}/{tried}" if result.failed else str(result.passed or "")
    href = _target(judged, promise_id, page, kind)
    return TableCell(word, kind, _cell_title(promise_id, result), href, count)


def _cell_title(promise_id: str, result: PromiseResult) -> str:
    lacking = f", {result.no_cap} without the capability" if result.no_cap else ""
    name = f"{promise_id} {TITLES.get(promise_id, '')}".strip()
    return f"{name}: {result.passed} tests passed, {result.failed} failed{lacking}"


def _target(judged: Judged, promise_id: str, page: str, kind: str) -> str:
    if kind == "good":
        return ""
    numbers = (
        n for n, group in enumerate(judged.verdict.groups, start=1) if promise_id in group.promises
    )
    number = next(numbers, None)
    if number is not None:
        return f"{page}#finding-{number}"
    return f"{page}#not-tested" if kind == "none" and judged.verdict.skips else f"{page}#promises"


def legend(rows: Iterable[MatrixRow]) -> list[tuple[str, str, str]]:
    """Returns kind, word and meaning of what the cells say."""
    found = {cell.text for row in rows for cell in row.cells}
    return [each for each in LEGEND if each[1] in found]
