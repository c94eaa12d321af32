"""The run as a page in Markdown, for a job summary or a comment on a pull request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from batchproof.findings.causes import Cause
from batchproof.plugin.writers.table import LEGEND, SessionFacts, counted, totals_line
from batchproof.plugin.writers.verdict import in_words
from batchproof.records.journal import JournalEntry
from batchproof.records.table import ConformanceTable
from batchproof.records.texts import header, line
from batchproof.records.trial_record import FailureRecord, SourcePlace
from batchproof.records.verdict import EngineVerdict
from batchproof.requirements.promises import Promise


@dataclass(frozen=True)
class Problem:
    """Failures that look like one mistake of an engine. `shown` is the test with the best report."""

    engine: str
    failure: FailureRecord  # of the test shown
    at: SourcePlace | None
    shown: JournalEntry
    tests: tuple[str, ...]  # names

    @property
    def promise(self) -> Promise:
        """The promise that is broken."""
        return Promise[self.failure.promise]

    @property
    def cause(self) -> str:
        """The cause in the words of a report, or nothing."""
        cause = Cause[self.failure.cause] if self.failure.cause else Cause.UNKNOWN
        return "" if cause is Cause.UNKNOWN else f"{cause.word}: {cause.value}"

    @property
    def headline(self) -> str:
        """What was found, without the promise, and how many tests found it."""
        found = self.failure.headline.removeprefix(f"{self.promise} is broken: ")
        return found if len(self.tests) == 1 else f"{found} ({len(self.tests)} tests)"


def failed_tests(finished: Iterable[JournalEntry]) -> tuple[JournalEntry, ...]:
    """Returns the tests that fail the run: what is not scored fails nothing."""
    scored = (each for each in finished if each.record is None or each.record.is_scored)
    return tuple(each for each in scored if each.outcome == "failed")


def problems_of(failed: Iterable[JournalEntry]) -> list[Problem]:
    """Returns the problems of the engines, by promise and then by the number of tests."""
    groups: dict[tuple[str, ...], list[Problem]] = defaultdict(list)
    for entry in failed:
        record = entry.record
        if record is not None and record.failure is not None and not record.is_stale:
            at = record.failure.raised_at or record.defined_at
            each = Problem(record.engine, record.failure, at, entry, (record.name,))
            place = (at.file, at.name) if at else ()  # no line, which moves
            groups[record.engine, record.failure.promise, record.failure.rule, *place].append(each)
    return sorted(map(_together, groups.values()), key=_rank)


def unexplained(failed: Iterable[JournalEntry]) -> list[JournalEntry]:
    """Returns the failed tests that no engine is to blame for: stale expectations among them."""
    return [e for e in failed if e.record is None or e.record.failure is None or e.record.is_stale]


def _together(alike: list[Problem]) -> Problem:
    """Returns the problem with the shortest report, of those with a cause if there are some."""
    names = sorted(name for each in alike for name in each.tests)
    best = min(alike, key=lambda each: (not each.cause, len(each.shown.report), each.tests))
    return replace(best, tests=tuple(names))


def _rank(problem: Problem) -> tuple[int, int, str]:
    return list(Promise).index(problem.promise), -len(problem.tests), problem.headline


LONGEST_REPORT = 20_000  # characters; a comment may have 65,536
MOST_ROWS = 30


@dataclass(frozen=True)
class FinishedRun:
    """A run as the page shows it: the table engine x promise, all tests that failed, the verdicts by
    engine, and what was left out."""

    table: ConformanceTable
    failed: tuple[JournalEntry, ...]
    folder: Path  # of the files
    known: tuple[JournalEntry, ...] = ()  # failed as expected
    verdicts: Mapping[str, EngineVerdict] = field(default_factory=dict)
    selection: str = ""  # such as "12 of 510 tests"; empty: all ran

    @classmethod
    def of(
        cls,
        table: ConformanceTable,
        finished: Sequence[JournalEntry],
        folder: Path,
        verdicts: Mapping[str, EngineVerdict],
        facts: SessionFacts,
    ) -> FinishedRun:
        """Returns the run whose tests have these entries."""
        known = tuple(each for each in finished if each.outcome == "known" and each.record)
        num_tests = sum(each.record is not None for each in finished)
        selection = ""
        if facts.is_uncounted:
            selection = f"{counted(num_tests, 'test')}, a selection"
        elif facts.num_left_out:
            selection = f"{num_tests} of {counted(num_tests + facts.num_left_out, 'test')}"
        return cls(table, failed_tests(finished), folder, known, verdicts, selection)


def summary_page(run: FinishedRun) -> str:
    """Returns the page: verdict, table, the first failure in full, the others as a list."""
    problems, others = problems_of(run.failed), unexplained(run.failed)
    parts = [*_verdict(run, problems), "", *_table(run.table), ""]
    parts += _totals(run.table, run.folder)
    if problems:
        parts += ["", "### First failure", "", *_in_full(problems[0], run.folder)]
    if problems[1:]:
        parts += ["", "### Other failures", "", *_list(problems[1:])]
    for title, entries in (
        ("Expected failures", run.known),
        ("Expected failures that pass now", [e for e in others if _is_stale(e)]),
        ("Failed for other reasons than an engine", [e for e in others if not _is_stale(e)]),
    ):
        if entries:
            parts += ["", f"### {title}", "", *(f"* {_one_line(e)}" for e in entries[:MOST_ROWS])]
    return "\n".join(parts) + "\n"


def _verdict(run: FinishedRun, problems: Sequence[Problem]) -> Iterator[str]:
    table = run.table
    for engine in table.engines:
        cells, verdict = table.cells[engine], run.verdicts.get(engine)
        broken = [p for p in Promise if any((e.engine, e.promise) == (engine, p) for e in problems)]
        known = [p for p in Promise if p.id in cells and cells[p.id].known and p not in broken]
        held = [p for p, c in cells.items() if c.passed and not c.failed and not c.known]
        num_held = len(verdict.held if verdict else held)
        words = [f"breaks {_promises(broken)}"] if broken else []
        words += [f"has expected failures in {_promises(known)}"] if known else []
        words += [f"keeps {counted(num_held, 'promise')}"]
        ran = f", in {run.selection}" if run.selection else ""
        yield f"## Batchproof: {_code(engine)} {' and '.join(words)}{ran}"
        if verdict and (asked := verdict.requirement_set):
            said = in_words(verdict)
            yield f"Requirement set {asked.name} (digest {asked.digest[:12]}): **{said}**.  "
    if not table.is_complete:
        yield "**The run was stopped: some tests are missing.**"
    elif any(each.requirement_set and each.verdict == "incomplete" for each in run.verdicts.values()):
        yield "**The run failed: requirements were not run.**"
    elif table.exit_status and not problems:
        yield "**The run failed**, though no promise is broken: see below, or the log."


def _promises(promises: Sequence[Promise]) -> str:
    return f"{counted(len(promises), 'promise')} ({', '.join(map(str, promises))})"


def _table(table: ConformanceTable) -> Iterator[str]:
    yield from header("promise", *map(_code, table.engines))
    for promise in Promise:
        cells = [table.cells[engine].get(promise.id) for engine in table.engines]
        if any(cells):
            texts = ("-" if c is None else f"**{c.text}**" if c.failed else c.text for c in cells)
            yield line(str(promise), *texts)


def _totals(table: ConformanceTable, folder: Path) -> Iterator[str]:
    for engine in table.engines:
        yield f"{totals_line(engine, table.totals[engine])}.  "
    yield f"Models {', '.join(table.models)}; {table.device}, {table.dtype}, torch {table.torch}.  "
    yield f"Run: {_code(_without_folders(table.made.command, folder))}.  "
    yield from (f"Note: {note}.  " for note in table.notes)
    yield f"\n<sub>{' · '.join(part for each in LEGEND for part in each.split('   '))}</sub>"


def _in_full(problem: Problem, folder: Path) -> Iterator[str]:
    if at := problem.at:
        yield f"At {_place(at)}{f', in {_code(at.name)}' if at.name else ''}:"
        yield ""
    yield from _fenced(_without_folders(problem.shown.report, folder)[:LONGEST_REPORT])


def _list(problems: Sequence[Problem]) -> Iterator[str]:
    for each in problems[:MOST_ROWS]:
        at = f" at {_place(each.at)}" if each.at else ""
        cause = f", {each.cause}" if each.cause else ""
        if each.failure.others:
            cause += f", and {counted(len(each.failure.others), 'more finding')}"
        name = each.shown.record.name if each.shown.record else each.shown.test
        yield f"* **{each.promise}**: {_code(' '.join(each.headline.split()))}{at}{cause}  "
        yield f"  {_code(name)}"
    if problems[MOST_ROWS:]:
        yield f"\n... and {counted(len(problems) - MOST_ROWS, 'more problem')}"


def _fenced(text: str) -> list[str]:
    """Returns the text as a block that no line of it can end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}text", text, fence]


def _place(at: SourcePlace) -> str:
    return _code(f"{at.file}:{at.line}")


def _code(text: str) -> str:
    """Returns the text as a code span; backticks in it would end the span."""
    return f"`{text.replace('`', chr(39))}`"


def _one_line(entry: JournalEntry) -> str:
    return f"{_code(entry.test)}: {' '.join((entry.reason or entry.report).split())[:500]}"


def _is_stale(entry: JournalEntry) -> bool:
    return entry.record is not None and entry.record.is_stale


def _without_folders(text: str, folder: Path) -> str:
    """Returns the text with files named from the folder of the run's files, or from the current one:
    where the page is read there are other machines."""
    for each in (folder, Path.cwd()):
        text = text.replace(f"{each}/", "")
    return text
