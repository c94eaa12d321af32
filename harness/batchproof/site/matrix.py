"""The cells engine x promise. Each that is not held leads to what is known of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from batchproof.records.verdict import PromiseResult
from batchproof.requirements.promises import Promise
from batchproof.site.history import Judged
from batchproof.site.tables import TableCell
from batchproof.site.verdict_summary import TITLES

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
    ("warn", "undecided", "tests of it were ended by another promise that broke"),
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
    return TableCell(
        word,
        kind,
        _title(promise_id, result),
        href=_target(judged, promise_id, page, kind),
        under=count,
    )


def _title(promise_id: str, result: PromiseResult) -> str:
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
