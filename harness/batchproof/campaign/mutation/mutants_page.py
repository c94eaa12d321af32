"""The table of mutants as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from batchproof.records.markdown import header, line
from batchproof.records.mutants import MutantRecord, MutantsRecord

NOTICED = ("killed", "hung", "died")
NO_FAULT = ("equivalent", "speed", "beyond")


def mutants_page(record: MutantsRecord) -> str:
    """Returns the page in Markdown."""
    lines = [f"# Mutants of {', '.join(record.engines)}", ""]
    lines += record.made.lines()
    lines += [f"* seed {record.seed}; models {', '.join(record.models)}", ""]
    lines += [*_verdict(record), "", "## Files", "", *_files(record), ""]
    survivors = [each for each in record.mutants if each.outcome == "survived"]
    if survivors:
        lines += ["## Survivors", "", *_survivors(survivors), ""]
    lines += ["## Killed", "", *_killed(record), ""]
    return "\n".join(lines)


def _verdict(record: MutantsRecord) -> Iterator[str]:
    if not record.is_complete:
        yield "INCOMPLETE: it was stopped before all mutants were judged."
        yield ""
    outcomes = Counter(each.outcome for each in record.mutants)
    told = Counter(
        each.judgement or "not judged" for each in record.mutants if each.outcome == "survived"
    )
    total = len(record.mutants)
    noticed = sum(outcomes[each] for each in NOTICED)
    harmless = sum(told[each] for each in NO_FAULT)
    counts = ", ".join(f"{outcomes[each]} {each}" for each in (*NOTICED, "survived"))
    yield f"{total} of {record.num_points} mutants: {counts}."
    if told:
        yield f"Of the survivors, {', '.join(f'{n} {what}' for what, n in sorted(told.items()))}."
    if total:
        yield f"Noticed, or of no effect on any answer: {(noticed + harmless) / total:.1%}."
    yield f"{record.num_unreached} points lie on lines that the suite does not execute here."


def _files(record: MutantsRecord) -> Iterator[str]:
    yield from header("file", "killed", "hung", "died", "survived")
    by_file: dict[str, Counter[str]] = {}
    for each in record.mutants:
        by_file.setdefault(each.path, Counter())[each.outcome] += 1
    for path, counts in sorted(by_file.items()):
        yield line(path, *(str(counts[each]) for each in (*NOTICED, "survived")))


def _survivors(survivors: list[MutantRecord]) -> Iterator[str]:
    for each in survivors:
        yield f"* `{each.name}` (line {each.line})"
        yield f"  {each.judgement or 'not judged'}{f': {each.why}' if each.why else ''}"


def _killed(record: MutantsRecord) -> Iterator[str]:
    yield from header("mutant", "by", "what was said")
    for each in record.mutants:
        if each.outcome in NOTICED:
            by = (each.killed_by or each.outcome).rpartition("/")[2]
            yield line(f"`{each.name.rpartition('/')[2]}`", by, each.report)
