"""Turns the entries of a journal into a verdict. Runs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from batchproof.judgement.groups import grouped, in_order
from batchproof.judgement.issues import KnownIssue, issues_of
from batchproof.plugin.promise_table import Outcome, cells_of, totals_of
from batchproof.promises import Promise
from batchproof.records.journal import JournalEntry
from batchproof.records.provenance import Provenance
from batchproof.records.table import PromiseCell
from batchproof.records.trial_record import Ledger
from batchproof.records.verdict import EngineVerdict, PromiseResult


def verdict_of(
    engine: str,
    entries: Iterable[JournalEntry],
    is_complete: bool,
    made: Provenance,
    suite_command: str,
    issues: Sequence[KnownIssue] = (),
) -> EngineVerdict:
    """Returns the verdict on one engine. `engine` is its name on the command line."""
    entries = list(entries)
    outcomes: list[Outcome] = [(each.outcome, each.record) for each in entries if each.record]
    said = _said([record.ledger for _, record in outcomes])
    known = issues_of(said.release, issues)
    found = grouped(entries, known)
    groups = tuple(in_order(found))
    cells = cells_of(engine, outcomes)
    undocumented = {p for group in groups if not group.is_documented for p in group.promises}
    failed = [p for p, cell in cells.items() if cell.failed]
    held = tuple(p for p, cell in cells.items() if cell.passed and not cell.failed)
    return EngineVerdict(
        title=title_of(engine, said.release, said.precision),
        engine=engine,
        release=said.release,
        precision=said.precision,
        conventions=said.conventions,
        promises={p: _result(cell, p in undocumented) for p, cell in cells.items()},
        held=held,
        broken=tuple(p for p in failed if p in undocumented),
        differing=tuple(p for p in failed if p not in undocumented),
        untested=tuple(p.id for p in Promise if p.id not in (*held, *failed)),
        totals=totals_of(engine, outcomes),
        groups=groups,
        unshown=tuple(each.record for each in known if each not in [issue for issue, _ in found]),
        skips=dict(Counter(e.report for e in entries if e.outcome == "skipped").most_common()),
        suite_command=suite_command,
        made=made,
        is_complete=is_complete,
    )


def _result(cell: PromiseCell, is_undocumented: bool) -> PromiseResult:
    """Returns the result of a promise. `is_undocumented`: some failure of it is not documented."""
    if cell.failed:
        words = "broken" if is_undocumented else "differs by design"
    else:
        words = "held" if cell.passed else cell.text
    return PromiseResult(words, cell.passed, cell.failed, cell.no_cap)


def _said(ledgers: Sequence[Ledger]) -> Ledger:
    """Returns what the engine states about itself: the first value of each field."""
    return Ledger(
        release=next((each.release for each in ledgers if each.release), None),
        conventions=next((each.conventions for each in ledgers if each.conventions), ()),
        precision=next((each.precision for each in ledgers if each.precision), ""),
    )


def title_of(engine: str, release: str | None, precision: str) -> str:
    """Returns the release, and the options that make it another engine. A URL or a command line is no
    title.
    """
    if release is None:
        return engine
    target, _, query = engine.partition("?")
    has_options = query and ":" not in target and "://" not in query
    options = query.replace("&", ", ") if has_options else ""
    return ", ".join(filter(None, (release, options, f"judged in {precision}" if precision else "")))
