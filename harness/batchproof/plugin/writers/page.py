"""The run as a page in Markdown, for a job summary or a comment on a pull request."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchproof.findings.causes import Cause
from batchproof.plugin.writers.table import LEGEND, totals_line
from batchproof.records.journal import JournalEntry
from batchproof.records.table import ConformanceTable
from batchproof.records.texts import counted, header, line
from batchproof.records.trial_record import FailureRecord, SourcePlace
from batchproof.records.verdict import EngineVerdict, FailureGroup
from batchproof.requirements.promises import Promise
from batchproof.requirements.verdict_of_journal import failure_groups


def failed_tests(finished: Iterable[JournalEntry]) -> tuple[JournalEntry, ...]:
    """Returns the tests that fail the run."""
    return tuple(each for each in finished if each.outcome == "failed")


def is_blamed(failed: JournalEntry) -> bool:
    """Returns whether an engine is to blame for a failed test, and no stale expectation."""
    record = failed.record
    return record is not None and record.failure is not None and not record.is_stale


LONGEST_REPORT = 20_000  # characters; a comment may have 65,536
MOST_ROWS = 30


@dataclass(frozen=True)
class FinishedRun:
    """A run as the page shows it: table, all tests, the verdict, and what was left out."""

    table: ConformanceTable
    finished: Sequence[JournalEntry]
    folder: Path  # of the files
    verdict: EngineVerdict | None = None  # of a run of one engine that asked for it
    selection: str = ""  # such as "12 of 510 tests"; empty: all ran


def summary_page(run: FinishedRun) -> str:
    """Returns the page: verdict, table, the first failure in full, the others as a list."""
    failed = failed_tests(run.finished)
    groups, others = groups_of(run.table, failed), [each for each in failed if not is_blamed(each)]
    parts = [*_verdict(run, groups), "", *_table(run.table), ""]
    parts += _totals(run.table, run.folder)
    listed = [group for engine in run.table.engines for group in groups[engine]]
    if listed:
        parts += ["", "### First failure", "", *_in_full(listed[0], run.folder)]
    if listed[1:]:
        parts += ["", "### Other failures", "", *_list(listed[1:])]
    known = [each for each in run.finished if each.outcome == "known" and each.record]
    for title, entries in (
        ("Expected failures", known),
        ("Expected failures that pass now", [e for e in others if _is_stale(e)]),
        ("Failed for other reasons than an engine", [e for e in others if not _is_stale(e)]),
    ):
        if entries:
            parts += ["", f"### {title}", "", *(f"* {_one_line(e)}" for e in entries[:MOST_ROWS])]
    return "\n".join(parts) + "\n"


def groups_of(
    table: ConformanceTable, failed: Iterable[JournalEntry]
) -> Mapping[str, Sequence[FailureGroup]]:
    """Returns the failures of each engine, in groups as its verdict has them."""
    blamed = [(each.record.engine, each) for each in failed if each.record and is_blamed(each)]
    return {
        engine: failure_groups([each for name, each in blamed if name == engine], ())
        for engine in table.engines
    }


def _verdict(run: FinishedRun, groups: Mapping[str, Sequence[FailureGroup]]) -> Iterator[str]:
    table = run.table
    for engine in table.engines:
        cells = table.cells[engine]
        broken = [p for p in Promise if any(p.id in each.promises for each in groups[engine])]
        known = [p for p in Promise if p.id in cells and cells[p.id].known and p not in broken]
        held = [p for p, c in cells.items() if c.passed and not c.failed and not c.known]
        num_held = len(run.verdict.held if run.verdict else held)
        words = [f"breaks {_promises(broken)}"] if broken else []
        words += [f"has expected failures in {_promises(known)}"] if known else []
        words += [f"keeps {counted(num_held, 'promise')}"]
        ran = f", in {run.selection}" if run.selection else ""
        yield f"## Batchproof: {_code(engine)} {' and '.join(words)}{ran}"
    if not table.is_complete:
        yield "**The run was stopped: some tests are missing.**"
    elif table.exit_status and not any(groups.values()):
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


def _in_full(group: FailureGroup, folder: Path) -> Iterator[str]:
    if at := group.failure and group.failure.raised_at:
        yield f"At {_place(at)}{f', in {_code(at.name)}' if at.name else ''}:"
        yield ""
    yield from _fenced(_without_folders(group.shown_report, folder)[:LONGEST_REPORT])


def _list(groups: Sequence[FailureGroup]) -> Iterator[str]:
    for each in groups[:MOST_ROWS]:
        failure = each.failure
        assert failure is not None, "those without are listed apart"
        promise = Promise[failure.promise]
        words = each.title.removeprefix(f"{promise} is broken: ")
        words += f" ({each.num_tests} tests)" if each.num_tests > 1 else ""
        at = f" at {_place(failure.raised_at)}" if failure.raised_at else ""
        others = f", and {counted(len(failure.others), 'more finding')}" if failure.others else ""
        yield f"* **{promise}**: {_code(' '.join(words.split()))}{at}{_cause(failure)}{others}  "
        yield f"  {_code(each.shown_test)}"
    if groups[MOST_ROWS:]:
        yield f"\n... and {counted(len(groups) - MOST_ROWS, 'more problem')}"


def _cause(failure: FailureRecord) -> str:
    cause = Cause[failure.cause or "UNKNOWN"]
    return "" if cause is Cause.UNKNOWN else f", {cause.word}: {cause.value}"


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
