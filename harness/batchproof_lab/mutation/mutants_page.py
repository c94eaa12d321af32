"""The mutants of all runs as a Markdown page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from batchproof.records.markdown import header, line
from batchproof.records.mutants import MutantRecord, MutantsRecord
from batchproof_lab.mutation.judged import Judgement

NOTICED = ("killed", "hung", "died")
COLUMNS = (*NOTICED, "survived", "waiting")
NO_FAULT = ("equivalent", "speed", "beyond")


def mutants_page(runs: Mapping[str, MutantsRecord], judged: Mapping[str, Judgement]) -> str:
    rows = [row for record in runs.values() for row in record.mutants]
    lines = ["# Mutants: engines changed at one point, before the conformance suite", ""]
    lines += [*_verdict(rows, judged), "", "## Runs", ""]
    for name, record in runs.items():
        lines += [f"`{name}.json`: {', '.join(f'`{each}`' for each in record.engines)}", ""]
        lines += [*record.made.lines(), *_reach(record), ""]
    lines += ["## Files", "", *_files(rows), "", "## Survivors", "", *_survivors(rows, judged), ""]
    lines += ["## Killed", "", *_killed(rows), ""]
    return "\n".join(lines)


def _verdict(rows: list[MutantRecord], judged: Mapping[str, Judgement]) -> Iterator[str]:
    outcomes = Counter(row.outcome for row in rows)
    told = Counter(_told(row, judged)[0] for row in rows if row.outcome == "survived")
    tried = len(rows) - outcomes["waiting"]
    noticed = sum(outcomes[each] for each in NOTICED)
    harmless = sum(told[each] for each in NO_FAULT)
    yield f"{tried} mutants: {', '.join(f'{outcomes[each]} {each}' for each in COLUMNS[:-1])}."
    if told:
        yield f"Of the survivors, {', '.join(f'{n} {what}' for what, n in sorted(told.items()))}."
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


def _told(row: MutantRecord, judged: Mapping[str, Judgement]) -> tuple[str, str]:
    found = judged.get(row.name)
    return (found.judgement, found.why) if found else ("not judged", "")


def _files(rows: Iterable[MutantRecord]) -> Iterator[str]:
    yield from header("file", *COLUMNS)
    by_file: dict[str, Counter[str]] = {}
    for row in rows:
        by_file.setdefault(row.path, Counter())[row.outcome] += 1
    for path, counts in sorted(by_file.items()):
        yield line(path, *(str(counts[each]) for each in COLUMNS))


def _survivors(rows: Iterable[MutantRecord], judged: Mapping[str, Judgement]) -> Iterator[str]:
    for row in rows:
        if row.outcome == "survived":
            judgement, why = _told(row, judged)
            yield f"* `{row.name}` (line {row.line})"
            yield f"  {judgement}{f': {why}' if why else ''}"


def _killed(rows: Iterable[MutantRecord]) -> Iterator[str]:
    yield from header("mutant", "by", "what was said")
    for row in rows:
        if row.outcome in NOTICED:
            by = (row.killed_by or row.outcome).rpartition("/")[2]
            yield line(f"`{row.name.rpartition('/')[2]}`", by, row.report)
