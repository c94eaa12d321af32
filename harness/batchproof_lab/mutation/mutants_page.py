"""The mutants of all runs as a Markdown page, with what people say of those that survived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from batchproof.records.texts import header, line
from batchproof.validation.yaml_nodes import read_yaml
from batchproof_lab.record_kinds import MutantRecord, MutantsRecord

NOTICED = ("killed", "hung", "died")
COLUMNS = (*NOTICED, "survived", "waiting")
NO_FAULT = ("equivalent", "speed", "beyond")


JUDGEMENTS = ("equivalent", "speed", "beyond", "hole")


@dataclass(frozen=True, slots=True)
class MutantJudgement:
    """`equivalent`: no input shows it; `speed`: it changes speed or memory alone; `beyond`: no promise
    speaks of it; `hole`: the suite should have caught it."""

    judgement: str
    why: str


def judgements(folder: Path) -> dict[str, MutantJudgement]:
    """Returns the judgements in `judged.yaml`, `name: [judgement, why]`, by the mutant's name; none if
    there is no file. Raises `CaseError` naming what is wrong in it.
    """
    path = folder / "judged.yaml"
    if not path.exists():
        return {}
    root = read_yaml(path, "the file", "judgements of mutants", if_empty="{}")
    found = {}
    for name, node in root.pairs("a mapping of names of mutants to [judgement, why]").items():
        match node.value():
            case [str(judgement), str(why)] if judgement in JUDGEMENTS:
                found[name] = MutantJudgement(judgement, why)
            case value:
                raise node.place.error(
                    f"{name!r} has {value!r}, but must have [judgement, why] "
                    f"with one of {', '.join(JUDGEMENTS)}"
                )
    return found


def open_survivors(
    runs: Iterable[MutantsRecord], judged: Mapping[str, MutantJudgement]
) -> Iterator[str]:
    """Yields a line for each survivor that is a hole or not judged, each mutant that waits, and each
    judgement of a mutant that does not survive."""
    outcomes = {row.name: row.outcome for each in runs for row in each.mutants}
    for name, outcome in outcomes.items():
        judgement = judged[name].judgement if name in judged else "not judged"
        if outcome == "survived" and judgement in ("hole", "not judged"):
            yield f"survived, {judgement}: {name}"
        if outcome == "waiting":
            yield f"not tried to the end: {name}"
    for name in judged:
        if outcomes.get(name) not in ("survived", "waiting"):
            yield f"judged, but {outcomes.get(name, 'in no run')}: {name}"


def mutants_page(runs: Mapping[str, MutantsRecord], judged: Mapping[str, MutantJudgement]) -> str:
    rows = [row for record in runs.values() for row in record.mutants]
    lines = ["# Mutants: engines changed at one point, before the conformance suite", ""]
    lines += [*_verdict(rows, judged), "", "## Runs", ""]
    for name, record in runs.items():
        lines += [f"`{name}.json`: {', '.join(f'`{each}`' for each in record.engines)}", ""]
        lines += [*record.made.lines(), *_reach(record), ""]
    lines += ["## Files", "", *_files(rows), "", "## Survivors", "", *_survivors(rows, judged), ""]
    lines += ["## Killed", "", *_killed(rows), ""]
    return "\n".join(lines)


def _verdict(rows: list[MutantRecord], judged: Mapping[str, MutantJudgement]) -> Iterator[str]:
    outcomes = Counter(row.outcome for row in rows)
    counts = Counter(_judgement(row, judged)[0] for row in rows if row.outcome == "survived")
    tried = len(rows) - outcomes["waiting"]
    noticed = sum(outcomes[each] for each in NOTICED)
    harmless = sum(counts[each] for each in NO_FAULT)
    yield f"{tried} mutants: {', '.join(f'{outcomes[each]} {each}' for each in COLUMNS[:-1])}."
    if counts:
        yield f"Of the survivors, {', '.join(f'{n} {what}' for what, n in sorted(counts.items()))}."
    if tried:
        yield f"Noticed, or of no effect on any answer: {(noticed + harmless) / tried:.1%}."
    if outcomes["waiting"]:
        yield f"INCOMPLETE: {outcomes['waiting']} more have not met the whole suite yet."


def _reach(record: MutantsRecord) -> Iterator[str]:
    seconds = sorted(row.seconds for row in record.mutants if row.outcome == "killed")
    yield (
        f"* {len(record.mutants)} drawn of {record.num_points - record.num_unreached} points, seed "
        f"{record.seed}; {record.num_unreached} more lie on lines that the suite does not execute here"
    )
    if seconds:
        yield f"* a kill takes {seconds[len(seconds) // 2]:.0f} s in the median"


def _judgement(row: MutantRecord, judged: Mapping[str, MutantJudgement]) -> tuple[str, str]:
    found = judged.get(row.name)
    return (found.judgement, found.why) if found else ("not judged", "")


def _files(rows: Iterable[MutantRecord]) -> Iterator[str]:
    yield from header("file", *COLUMNS)
    by_file: dict[str, Counter[str]] = {}
    for row in rows:
        by_file.setdefault(row.path, Counter())[row.outcome] += 1
    for path, counts in sorted(by_file.items()):
        yield line(path, *(str(counts[each]) for each in COLUMNS))


def _survivors(rows: Iterable[MutantRecord], judged: Mapping[str, MutantJudgement]) -> Iterator[str]:
    for row in rows:
        if row.outcome == "survived":
            judgement, why = _judgement(row, judged)
            yield f"* `{row.name}` (line {row.line})"
            yield f"  {judgement}{f': {why}' if why else ''}"


def _killed(rows: Iterable[MutantRecord]) -> Iterator[str]:
    yield from header("mutant", "by", "what was said")
    for row in rows:
        if row.outcome in NOTICED:
            by = (row.killed_by or row.outcome).rpartition("/")[2]
            yield line(f"`{row.name.rpartition('/')[2]}`", by, row.report)
