"""What is wrong with a kill table, in lines for people. Without a line the table proves the suite."""

from __future__ import annotations

from collections.abc import Iterator

from batchproof.records.kills import KillTableRecord

LOWEST_SCORE = 0.85  # of the diagnosis


def problems(table: KillTableRecord) -> list[str]:
    """Returns the problems, one line each.

    A table that was stopped shows only where the suite itself broke. Tests that catch nothing are a
    problem only in a table of all faults on all embedded models.
    """
    if not table.is_complete:
        return list(_own_failures(table))
    found = [*_survivors(table), *_own_failures(table)]
    if table.is_full:
        found += _idle_tests(table)
    return [*found, *_diagnosis(table)]


def _survivors(table: KillTableRecord) -> Iterator[str]:
    for name, row in table.faults.items():
        for seed in table.seeds:
            kills = [kill for kill in row.kills if kill.seed == seed]
            if kills and not any(kill.caught_by for kill in kills):
                tried = ", ".join(dict.fromkeys(model for kill in kills for model in kill.models))
                yield f"fault {name} ({row.promise}) survives seed {seed} on {tried}: {row.lie}"


def _own_failures(table: KillTableRecord) -> Iterator[str]:
    for name, row in table.faults.items():
        for text in row.own_failures:
            yield f"the suite itself broke on fault {name}: {text}"


def _idle_tests(table: KillTableRecord) -> Iterator[str]:
    for function, row in table.tests.items():
        if not row.faults:
            yield f"{function} catches no fault: plant one that it catches, or take the test out"


def _diagnosis(table: KillTableRecord) -> Iterator[str]:
    right, votes = table.diagnosis.right, table.diagnosis.votes
    if votes and right < LOWEST_SCORE * votes:
        yield (
            f"the diagnosis names the right cause in {right} of {votes} catches, "
            f"{right / votes:.0%}; {LOWEST_SCORE:.0%} are required"
        )
