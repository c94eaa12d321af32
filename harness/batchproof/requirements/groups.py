"""Groups failures by known issue, else by the test and the promise that it broke."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from batchproof.records.journal import JournalEntry
from batchproof.records.trial_record import FailureRecord
from batchproof.records.verdict import FailureGroup
from batchproof.requirements.issues import KnownIssue
from batchproof.requirements.promises import Promise

IssueGroup = tuple[KnownIssue | None, tuple[JournalEntry, ...]]


def group_by_issue(entries: Iterable[JournalEntry], issues: Sequence[KnownIssue]) -> list[IssueGroup]:
    """Returns the failed tests by the first issue that fits, else by promise and by the place where the
    engine raised or hung, or by test."""
    groups: dict[object, tuple[KnownIssue | None, list[JournalEntry]]] = {}
    for each in entries:
        if each.outcome == "failed":
            record = each.record
            issue = next((one for one in issues if record is not None and one.fits(record)), None)
            key: object = issue.record.title if issue else (*_promises(each), _place(each))
            groups.setdefault(key, (issue, []))[1].append(each)
    return [(issue, tuple(members)) for issue, members in groups.values()]


def failure_groups(groups: Iterable[IssueGroup]) -> Iterator[FailureGroup]:
    """Yields defects first, then by the order of the promises; groups that name
    no promise come last.
    """
    yield from sorted((_group(issue, members) for issue, members in groups), key=_rank_of)


def _group(issue: KnownIssue | None, members: Sequence[JournalEntry]) -> FailureGroup:
    shown = min(members, key=_shortest_replayable)
    failure = _failure(shown)
    headline = failure.headline if failure else shown.report.partition("\n")[0]
    promises = {promise for each in members for promise in _promises(each)}
    return FailureGroup(
        title=issue.record.title if issue else headline,
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
    before there was a record.
    """
    return entry.record.counted_for if entry.record else ()


def _test(entry: JournalEntry) -> str:
    """Returns the test function, with the curated case if there is one; without
    a record the node id.
    """
    if entry.record is None or not entry.record.function:
        return entry.test
    failure = entry.record.failure
    case = failure.case if failure else None
    return f"{entry.record.function}, case {case}" if case else entry.record.function


def _rank_of(group: FailureGroup) -> tuple[bool, int, str]:
    return group.is_documented, min(map(_rank, group.promises), default=len(Promise)), group.title


def _rank(promise: str) -> int:
    return [each.id for each in Promise].index(promise)
