"""Groups the failures of a run by the mistake that they look like: engine, promise, rule and place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from batchproof.cli.config_file import OWN, SHARED
from batchproof.findings.causes import Cause
from batchproof.places import repository
from batchproof.records.journal import JournalEntry
from batchproof.records.trial_record import FailureRecord, SourcePlace
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
            at = record.failure.raised_at or record.defined_at or _configuration()
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


def _configuration() -> SourcePlace | None:
    """Returns where an engine without source here is named."""
    root = repository()
    files = [name for name in (OWN, SHARED) if (root / name).is_file()]
    return SourcePlace(files[0], 1, "") if files else None
