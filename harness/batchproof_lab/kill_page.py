"""The kill table as Markdown, and its problems; without one, the table proves the suite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from batchproof.records.texts import header, line
from batchproof_lab.record_kinds import (
    DiagnosisScore,
    FaultRow,
    FunctionRow,
    KillRecord,
    KillTableRecord,
)

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
    return [*found, *_diagnosis_problem(table)]


def _survivors(table: KillTableRecord) -> Iterator[str]:
    for name, row in table.faults.items():
        for seed in table.seeds:
            kills = [kill for kill in row.kills if kill.seed == seed]
            if kills and not any(kill.caught_by for kill in kills):
                tried = ", ".join(row.home or table.models)
                yield f"fault {name} ({row.promise}) survives seed {seed} on {tried}: {row.lie}"


def _own_failures(table: KillTableRecord) -> Iterator[str]:
    for name, row in table.faults.items():
        for text in row.own_failures:
            yield f"the suite itself broke on fault {name}: {text}"


def _idle_tests(table: KillTableRecord) -> Iterator[str]:
    for function, row in table.tests.items():
        if not row.faults:
            yield f"{function} catches no fault: plant one that it catches, or take the test out"


def _diagnosis_problem(table: KillTableRecord) -> Iterator[str]:
    right, votes = table.diagnosis.right, table.diagnosis.votes
    if votes and right < LOWEST_SCORE * votes:
        yield (
            f"the diagnosis names the right cause in {right} of {votes} catches, "
            f"{right / votes:.0%}; {LOWEST_SCORE:.0%} are required"
        )


def kill_page(table: KillTableRecord) -> str:
    lines = ["# The kill table: every planted fault before the conformance suite", ""]
    lines += [*table.made.lines(), *_scope(table), *_updates(table), "", *_verdict(table), ""]
    for kind in dict.fromkeys(row.kind for row in table.faults.values()):
        rows = {name: row for name, row in table.faults.items() if row.kind == kind}
        lines += [f"## {kind.replace('_', ' ')}", "", *_faults(rows, table), ""]
    lines += ["## Diagnosis", "", *_diagnosis(table.diagnosis), ""]
    lines += ["## What each conformance test catches", "", *_tests(table.tests)]
    return "\n".join([*lines, ""])


def _scope(table: KillTableRecord) -> Iterator[str]:
    yield f"* models: {', '.join(table.models)}; Hypothesis seeds: {_joined(table.seeds)}"
    if not table.is_complete:
        yield "* INCOMPLETE: it was stopped before everything was tried"
    elif not table.is_full:
        yield "* a part only: not all faults, or not all embedded models"


def _updates(table: KillTableRecord) -> Iterator[str]:
    for each in table.updates:
        names = ", ".join(f"`{name}`" for name in each.faults)
        yield f"* made later with `--update`, {each.made.date}, commit {each.made.commit}: {names}"


def _verdict(table: KillTableRecord) -> list[str]:
    caught = sum(bool(row.home) for row in table.faults.values())
    as_declared = sum(
        any(kill.broken == row.promise for kill in row.kills) for row in table.faults.values()
    )
    fine = "No survivor, and nothing else to complain about." if table.is_complete else ""
    found = [text.partition("\n")[0] for text in problems(table)]
    return [
        f"{caught} of {len(table.faults)} faults are caught, {as_declared} of them as the promise "
        "they were planted against.",
        "",
        *([f"* {text}" for text in found] or [fine]),
        "",
        "Hunts have the default profile and do not shrink. Generated workloads come first, so `by` "
        "names a test of written ones only where no generated one of that promise shows the fault. "
        "Values between slashes are those of the seeds. Examples are workloads given to the engine "
        "until the first failure, its replay included.",
    ]


def _faults(rows: Mapping[str, FaultRow], table: KillTableRecord) -> Iterator[str]:
    yield from header(
        *("fault", "breaks", "caught as", "by", "models", "examples", "seconds", "cause", "diagnosis")
    )
    for name, row in rows.items():
        owner, _, number = row.thread.partition("#")
        link = f"[{row.thread}](https://github.com/{owner}/issues/{number})"
        kills = row.kills if row.home else ()
        yield line(
            f"`{name}`: {row.lie} {link}",
            row.promise,
            _each(kill.broken for kill in kills),
            _each(_short(kill.caught_by) for kill in kills),
            _models(row, table),
            "/".join(str(kill.examples) for kill in kills),
            "/".join(f"{kill.seconds:.1f}" for kill in kills),
            row.cause,
            _named(row, kills),
        )


def _models(row: FaultRow, table: KillTableRecord) -> str:
    if len(row.home) > 1:
        return "together only"
    if len(row.models) == len(table.models):
        return f"all {len(table.models)}"
    return ", ".join(row.models) or "none"


def _named(row: FaultRow, kills: Sequence[KillRecord]) -> str:
    if kills and all(kill.cause == row.cause for kill in kills):
        return "right"
    return _each(kill.cause for kill in kills)


def _diagnosis(diagnosis: DiagnosisScore) -> Iterator[str]:
    right, votes = diagnosis.right, diagnosis.votes
    share = f" ({right / votes:.1%})" if votes else ""
    yield f"The right cause is named in {right} of {votes} catches{share}, one for each fault and seed."
    yield ""
    yield from header("cause", "right", "of", "named instead")
    for expected, named in diagnosis.confusion.items():
        others = [f"{cause} {count}" for cause, count in sorted(named.items()) if cause != expected]
        total = sum(named.values())
        yield line(expected, str(named.get(expected, 0)), str(total), ", ".join(others))


def _tests(tests: Mapping[str, FunctionRow]) -> Iterator[str]:
    yield "Faults that a test was the first to catch, in one of the hunts. Tests never first were"
    yield "tried alone, on one fault after the other, until they caught one."
    yield ""
    yield from header("test", "workloads", "faults")
    for function, row in sorted(tests.items(), key=lambda each: -len(each[1].faults)):
        made = "generated" if row.is_generated else "written"
        yield line(f"`{_short(function)}`", made, str(len(row.faults)))


def _short(function: str | None) -> str:
    return (function or "no test").rpartition("::")[2]


def _each(values: Iterable[str | None]) -> str:
    """Returns the value once if all are equal, else one for each seed."""
    texts = [value or "-" for value in values]
    return _joined(dict.fromkeys(texts) if len(set(texts)) == 1 else texts, "/") or "-"


def _joined(values: Iterable[object], separator: str = ", ") -> str:
    return separator.join(map(str, values))
