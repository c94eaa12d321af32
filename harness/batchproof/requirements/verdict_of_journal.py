"""Turns finished tests into a verdict. Runs nothing."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import cast

from batchproof.places import SUITE
from batchproof.records.decode import decode, encode
from batchproof.records.journal import JournalEntry
from batchproof.records.provenance import Provenance
from batchproof.records.suite_stamp import suite_stamp
from batchproof.records.table import PromiseCell, Totals
from batchproof.records.texts import without_machine_paths
from batchproof.records.trial_record import FailureRecord, Ledger, TrialRecord
from batchproof.records.verdict import (
    Conditions,
    EngineVerdict,
    FailureGroup,
    PromiseResult,
    RequirementFailure,
    RequirementOutcome,
    Verdict,
)
from batchproof.requirements.issues import KnownIssue, issue_of
from batchproof.requirements.promises import Promise

Outcome = tuple[str, TrialRecord]  # passed, failed, skipped or known
MetRequirement = tuple[TrialRecord, RequirementOutcome]
DECIDED: tuple[RequirementOutcome, ...] = ("held", "failed", "known")
WORST_FIRST: tuple[Verdict, ...] = (
    *("broken", "incomplete", "undecided", "known failures", "differs by design", "held"),
)


def verdict_of(
    engine: str,
    entries: Iterable[JournalEntry],
    is_complete: bool,
    made: Provenance,
    command: str,
    conditions: Conditions,
    issues: Sequence[KnownIssue] = (),
) -> EngineVerdict:
    """Returns the verdict on one engine. `engine` is its name on the command line; `is_complete`
    states that no chosen test is missing; `command` is the run of the suite."""
    entries = [_as_met(each) for each in entries]
    ended = [(each.record, _outcome(each.outcome, each.record)) for each in entries if each.record]
    met = {record.requirement: (record, outcome) for record, outcome in ended if outcome}
    outcomes = [(each.outcome, each.record) for each in entries if each.record]
    statement = _statement([record.ledger for _, record in outcomes])
    known = [each for each in issues if each.is_of(statement.release, engine)]
    groups = failure_groups(entries, known)
    shown = [each.issue for each in groups]
    promises = _results(cells_of(engine, outcomes), groups, undecided_tests(met))
    tried = {name for name, each in promises.items() if each.verdict in WORST_FIRST}
    return EngineVerdict(
        title=title_of(engine, statement.release, statement.precision),
        engine=engine,
        release=statement.release,
        precision=statement.precision,
        conventions=statement.conventions,
        promises=promises,
        held=_with("held", promises),
        broken=_with("broken", promises),
        differing=_with("differs by design", promises),
        untested=tuple(each.id for each in Promise if each.id not in tried),
        totals=totals_of(engine, outcomes),
        groups=groups,
        unshown=tuple(each.record for each in known if each.record not in shown),
        skips=dict(Counter(e.report for e in entries if e.outcome == "skipped").most_common()),
        suite_command=command,
        made=made,
        is_complete=is_complete,
        verdict=_overall(promises, groups, is_complete),
        suite=suite_stamp(),
        conditions=conditions,
        outcomes={name: outcome for name, (_, outcome) in met.items()},
        failures=tuple(_failures(engine, entries, met, conditions)),
    )


def _overall(
    promises: Mapping[str, PromiseResult], groups: Iterable[FailureGroup], is_complete: bool
) -> Verdict:
    """Returns the verdict that the results of the promises add up to. A run is whole if it is complete
    and each of its failures names a promise; what is not whole is never "held"."""
    is_whole = is_complete and all(group.promises for group in groups)
    verdicts = {each.verdict for each in promises.values()} | (set() if is_whole else {"incomplete"})
    return next((each for each in WORST_FIRST if each in verdicts), "untested")


def _as_met(entry: JournalEntry) -> JournalEntry:
    """Returns a test that passes against expectation as one that passed."""
    is_stale = entry.record is not None and entry.record.is_stale
    return replace(entry, outcome="passed") if is_stale else entry


def _with(verdict: str, promises: Mapping[str, PromiseResult]) -> tuple[str, ...]:
    return tuple(p for p, each in promises.items() if each.verdict == verdict)


def _results(
    cells: Mapping[str, PromiseCell], groups: Sequence[FailureGroup], undecided: Mapping[str, int]
) -> dict[str, PromiseResult]:
    """Returns the result of each promise that was asked, in their order."""
    undocumented = {p for group in groups if not group.is_documented for p in group.promises}
    return {
        p.id: _result(cells.get(p.id, PromiseCell("")), p.id in undocumented, undecided.get(p.id, 0))
        for p in Promise
        if p.id in {*cells, *undecided}
    }


def _result(cell: PromiseCell, is_undocumented: bool, undecided: int) -> PromiseResult:
    """Returns the result of a promise. `is_undocumented`: some failure of it is not documented."""
    verdict: Verdict
    if cell.failed:
        verdict = "broken" if is_undocumented else "differs by design"
    elif undecided:
        verdict = "undecided"
    elif cell.known:
        verdict = "known failures"
    else:
        verdict = "held" if cell.passed else cast(Verdict, cell.text)
    return PromiseResult(verdict, cell.passed, cell.failed, cell.no_cap, cell.known, undecided)


def _failures(
    engine: str,
    entries: Iterable[JournalEntry],
    met: Mapping[str, MetRequirement],
    conditions: Conditions,
) -> Iterable[RequirementFailure]:
    """Yields what failed."""
    for each in entries:
        record = each.record
        name = record.requirement if record else ""
        if record and name in met and met[name][1] in ("failed", "known", "error"):
            headline = record.failure.headline if record.failure else each.report.partition("\n")[0]
            is_ours = (SUITE / f"{name.partition('::')[0]}.py").is_file()
            command = ["batchproof", "test", engine] if is_ours else ["pytest", f"--engine={engine}"]
            command += [*conditions.options, f"--requirement={name}"]
            yield RequirementFailure(name, headline, shlex.join(command), record.failure)


def _statement(ledgers: Sequence[Ledger]) -> Ledger:
    """Returns what the engine states about itself: the first value of each field."""
    return Ledger(
        release=next((each.release for each in ledgers if each.release), None),
        conventions=next((each.conventions for each in ledgers if each.conventions), ()),
        precision=next((each.precision for each in ledgers if each.precision), ""),
    )


def title_of(engine: str, release: str | None, precision: str) -> str:
    """Returns the release, and the options that make it another engine. A URL or a command line is no
    title."""
    if release is None:
        return engine
    target, _, query = engine.partition("?")
    has_options = query and ":" not in target and "://" not in query
    options = query.replace("&", ", ") if has_options else ""
    return ", ".join(filter(None, (release, options, f"judged in {precision}" if precision else "")))


def without_local_paths(verdict: EngineVerdict) -> EngineVerdict:
    """Returns the verdict without paths of this machine. Reasons that differed in a path alone become
    one."""
    skips: Counter[str] = Counter()
    for reason, count in verdict.skips.items():
        skips[without_machine_paths(reason)] += count
    return decode(EngineVerdict, _clean(encode(replace(verdict, skips=dict(skips.most_common())))))


def _clean(value: object) -> object:
    if isinstance(value, dict):
        return {without_machine_paths(name): _clean(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_clean(each) for each in value]
    return without_machine_paths(value) if isinstance(value, str) else value


def cells_of(engine: str, outcomes: Iterable[Outcome]) -> Mapping[str, PromiseCell]:
    """Returns the cell of each promise id, in the order of the promises. Promises that no test
    checked are left out."""
    counts: dict[str, Counter[str]] = {}
    for outcome, record in outcomes:
        if record.engine == engine:
            for promise_id in record.counted_for:
                count = counts.setdefault(promise_id, Counter())
                count[_kind(outcome, record)] += 1
                count["near_ties"] += record.ledger.num_near_ties
    found = {p.id: counts[p.id] for p in Promise if p.id in counts}
    return {name: PromiseCell(_cell_text(count), **count) for name, count in found.items()}


def _kind(outcome: str, record: TrialRecord) -> str:
    """Returns the field of `PromiseCell` that counts the test."""
    if outcome == "passed" and record.is_inadequate:
        return "inadequate"
    if outcome == "skipped" and record.lacks is not None:
        return "no_cap"
    return "refused" if outcome == "skipped" and record.refused is not None else outcome


def _cell_text(count: Counter[str]) -> str:
    """Returns the outcomes of one engine and promise in the form that `LEGEND` explains."""
    known = [f"known {count['known']}"] if count["known"] else []
    if count["failed"]:
        return " ".join([f"FAIL {count['failed']}", *known])
    if count["passed"]:
        near_ties = [f"~{count['near_ties']}"] if count["near_ties"] else []
        return " ".join([str(count["passed"]), *near_ties, *known])
    others = (kind for kind in ("inadequate", "no_cap", "refused", "skipped") if count[kind])
    return " ".join(known) or next(others).replace("_", " ")


def totals_of(engine: str, outcomes: Iterable[Outcome]) -> Totals:
    """Returns what all tests of an engine compared."""
    ledgers = [record.ledger for _, record in outcomes if record.engine == engine]
    counters = Counter[str]()
    for each in ledgers:
        counters.update(each.counters)
    names = [each.name for each in fields(Totals) if each.name != "counters"]  # a ledger has the same
    sums = {name: sum(getattr(each, name) for each in ledgers) for name in names}
    return Totals(**sums, counters=counters)


def undecided_tests(met: Mapping[str, MetRequirement]) -> Counter[str]:
    """Returns by promise how many of its tests say nothing of it, and no more on another model."""
    decided = {
        (promise, _on_any_model(record))
        for record, outcome in met.values()
        for promise in record.promises
        if outcome in DECIDED and not _says_nothing(promise, outcome, record)
    }
    return Counter(
        promise
        for record, outcome in met.values()
        for promise in record.promises
        if _says_nothing(promise, outcome, record)
        and (outcome == "error" or (promise, _on_any_model(record)) not in decided)
    )


def _outcome(outcome: str, record: TrialRecord) -> RequirementOutcome | None:
    """Returns the outcome of a test; None for a curated case that is about other models."""
    if outcome == "passed":
        return "inadequate" if record.is_inadequate else "held"
    if outcome == "skipped":
        return "no capability" if record.lacks else "refused" if record.refused else None
    if record.is_own_failure:
        return "error"
    return "known" if outcome == "known" else "failed"


def _on_any_model(record: TrialRecord) -> str:
    """Returns what a test requires, whatever the model."""
    return record.requirement.replace(f"[{record.model}", "[", 1)


def _says_nothing(promise: str, outcome: RequirementOutcome, record: TrialRecord) -> bool:
    """Returns whether the harness, or another promise that broke, ended the test of a promise."""
    return outcome == "error" or (record.failure is not None and record.failure.promise != promise)


def failure_groups(
    entries: Iterable[JournalEntry], issues: Sequence[KnownIssue]
) -> tuple[FailureGroup, ...]:
    """Returns the failed tests by the first issue that fits, else by promise and by the place where the
    engine raised or hung, or by test. Defects come first, then by the order of the promises; groups
    that name no promise come last."""
    groups: dict[object, tuple[KnownIssue | None, list[JournalEntry]]] = {}
    for each in entries:
        if each.outcome == "failed":
            issue = issue_of(each.record, issues) if each.record is not None else None
            key: object = issue.title if issue else (*_promises(each), _place(each))
            groups.setdefault(key, (issue, []))[1].append(each)
    return tuple(sorted((_group(*each) for each in groups.values()), key=_rank_of))


def _group(issue: KnownIssue | None, members: Sequence[JournalEntry]) -> FailureGroup:
    shown = min(members, key=_shortest_replayable)
    failure = _failure(shown)
    headline = failure.headline if failure else shown.report.partition("\n")[0]
    promises = {promise for each in members for promise in _promises(each)}
    return FailureGroup(
        title=issue.title if issue else headline,
        promises=tuple(sorted(promises, key=_rank)),
        tests=tuple(dict.fromkeys(_test(each) for each in members)),
        models=tuple(dict.fromkeys(each.record.model for each in members if each.record)),
        num_tests=len(members),
        shown_test=shown.test,
        shown_report=shown.report,
        failure=failure,
        issue=issue.record if issue else None,
    )


def _shortest_replayable(entry: JournalEntry) -> tuple[bool, int]:
    failure = _failure(entry)
    return failure is None or failure.replay is None, len(entry.report)


def _failure(entry: JournalEntry) -> FailureRecord | None:
    return entry.record.failure if entry.record else None


def _place(entry: JournalEntry) -> tuple[str, ...]:
    """Returns file and function where the engine raised, whose lines may move; else the test."""
    failure = _failure(entry)
    at = failure and failure.raised_at
    return (at.file, at.name) if at else (_test(entry),)


def _promises(entry: JournalEntry) -> tuple[str, ...]:
    """Returns the promises that the test counts for, as in the table; none if the process ended
    before there was a record."""
    return entry.record.counted_for if entry.record else ()


def _test(entry: JournalEntry) -> str:
    """Returns the test function, with the curated case if there is one; without
    a record the node id."""
    if entry.record is None or not entry.record.function:
        return entry.test
    failure = entry.record.failure
    case = failure.case if failure else None
    return f"{entry.record.function}, case {case}" if case else entry.record.function


def _rank_of(group: FailureGroup) -> tuple[bool, int, str]:
    return group.is_documented, min(map(_rank, group.promises), default=len(Promise)), group.title


def _rank(promise: str) -> int:
    return [each.id for each in Promise].index(promise)
