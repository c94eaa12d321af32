"""The page of a matrix: its cells, what decides, and the outcome of each requirement that broke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from batchproof.judgement.axes import unlike, words_of
from batchproof.judgement.output import LEGEND, PAGE, signs_of
from batchproof.records.matrix import Difference, MatrixRecord, is_told, rows_of, told_rows
from batchproof.records.texts import counted, header, line
from batchproof.records.verdict import RequirementOutcome
from batchproof.requirements.promises import Promise

OUTCOME_SIGNS: Mapping[RequirementOutcome, str] = {
    "held": "✓",
    "failed": "✗",
    "known": "✗",
    "error": "?",
    "not run": "?",
}
MOST_NAMED = 3


def matrix_page(record: MatrixRecord) -> str:
    cells = record.cells
    minutes = sum(each.minutes for each in cells) + record.probe_minutes
    lines = [f"# {record.engine}: {_counted(record)}", ""]
    if not record.is_complete:
        lines += ["**INCOMPLETE**: it was stopped, or a cell could not be judged.", ""]
    lines += [*summary_lines(record), "", *record.made.lines()]
    lines.append(f"* suite: version {record.suite.version}, digest {record.suite.digest}")
    lines.append(
        f"* {minutes:.1f} min: {minutes - record.probe_minutes:.1f} for the cells, "
        f"{record.probe_minutes:.1f} for {counted(record.num_probes, 'run')} of requirements alone"
    )
    lines += ["", "## Axes", "", "The first value of each is the base.", ""]
    lines += [f"* {name}: {', '.join(values)}" for name, values in record.axes.items()]
    lines += ["", "## Cells", "", *_cells(record), "", LEGEND, ""]
    if record.differences:
        lines += ["## What a configuration decides", ""]
        lines += [_difference(each, record) for each in _sorted(record.differences)]
        lines += [*_unsearched(record), ""]
    lines += [*_everywhere(record), *_requirements(record)]
    return "\n".join(lines)


def summary_lines(record: MatrixRecord) -> list[str]:
    """Returns a sentence for the whole, one for each finding that a setting decides, one for each cell
    that is not judged, and one for each value of an axis that the machine cannot have."""
    num = sum(each.num_requests for each in record.cells)
    told: dict[str, list[str]] = {}
    for each in _sorted(record.differences):
        if each.decisive:
            told.setdefault(sentence(each, record), []).append(each.what)
    told_names = {name for names in told_rows(record).values() for name in names}
    num_unjudged = sum(bool(each.why_not) for each in record.cells)
    lacks = {"missing": record.num_missing, "not judged in full": num_unjudged}
    lacking = ", ".join(f"{number} {what}" for what, number in lacks.items() if number)
    broken = f"no requirement is broken{' in what was judged' if lacking else ''}."
    if record.outcomes:
        broken = (
            f"{counted(len(record.outcomes), 'requirement')} broken in some, of which "
            f"{len({*record.outcomes} - told_names)} wherever they could be asked."
        )
    whole = f"{record.engine} was asked in {_counted(record)}, {num:,} answers: {broken}"
    if lacking:
        whole += f" Of {_counted(record, record.num_missing)}: {lacking}."
    found = [f"* {how}: {'; '.join(dict.fromkeys(what))}" for how, what in told.items()]
    named = zip(columns_of(record), record.cells, strict=True)
    return [
        whole,
        *found,
        *(f"* not judged: {name}: {each.why_not}" for name, each in named if each.why_not),
        *(f"* left out: {each}" for each in record.left_out),
    ]


def _counted(record: MatrixRecord, num_more: int = 0) -> str:
    what = "release" if record.is_ordered else "configuration"
    return counted(len(record.cells) + num_more, what)


def _sorted(differences: Sequence[Difference]) -> list[Difference]:
    return sorted(differences, key=lambda each: (not each.decisive, -len(each.requirements), each.what))


def sentence(found: Difference, record: MatrixRecord) -> str:
    """Returns what decides: `breaks with dtype=bfloat16 and compiled=true, holds without either`."""
    decisive = {name: found.at[name] for name in found.decisive}
    unasked = {name: found.at[name] for name in found.unasked}
    if not found.decisive and not found.unasked:
        return f"not decided by one setting ({found.note})"
    if record.is_ordered:
        return _change(found, record)
    broken = f"breaks with {words_of({**decisive, **unasked})}"
    other = f"holds with {words_of(found.decisive)}"
    if len(found.decisive) > 1:
        other = f"holds without {'either' if len(found.decisive) == 2 else 'any one of them'}"
    holds = [other] if found.decisive else []
    cannot = [f"cannot be asked with {words_of(found.unasked)}"] if found.unasked else []
    return ", ".join([broken, *holds, *cannot])


def _change(found: Difference, record: MatrixRecord) -> str:
    ((axis, held),) = found.decisive.items()
    broken, order = found.at[axis], record.axes[axis]
    if order.index(broken) < order.index(held):
        return f"mended in {held}, broken in {broken}"
    return f"broken in {broken}, held in {held}"


def _difference(found: Difference, record: MatrixRecord) -> str:
    sought = {**found.decisive, **found.unasked}
    other = unlike(found.at, record.base)
    rest = {name: value for name, value in other.items() if name not in sought}
    at = f" Seen at {words_of(rest)}." if rest else ""
    num = counted(len(found.requirements), "requirement")
    asked = "together" if found.what in record.findings else f"alone: `{found.shown}`"
    return (
        f"* **{sentence(found, record)}**: {found.what}. {num}: {_named(found.requirements)}; asked "
        f"{asked}.{at}"
    )


def _unsearched(record: MatrixRecord) -> Iterator[str]:
    """Yields a line if the allowed runs did not suffice for all."""
    searched = {frozenset(each.requirements) for each in record.differences}
    num = sum(frozenset(names) not in searched for names in told_rows(record).values())
    if num:
        yield f"* Not decided within the allowed runs: {counted(num, 'set')} of requirements below."


def _cells(record: MatrixRecord) -> Iterator[str]:
    yield from header("cell", "answers", "minutes", *(each.id for each in Promise))
    for each, name in zip(record.cells, columns_of(record), strict=True):
        shown = f"[{name}]({each.folder}/{PAGE})" if each.promises else name
        shown += f": {each.why_not}" if each.why_not else ""
        yield line(shown, f"{each.num_requests:,}", f"{each.minutes:.1f}", *signs_of(each.promises))


def _everywhere(record: MatrixRecord) -> Iterator[str]:
    """Yields what broke in every cell in which it could be asked."""
    found = Counter[str]()
    for (what, signs), names in rows_of(record).items():
        if not is_told(signs):
            found[what] += len(names)
    if found:
        yield from ["## In every configuration that can be asked", ""]
        yield from (
            f"* {what}: {counted(number, 'requirement')}" for what, number in found.most_common()
        )
        yield ""


def _requirements(record: MatrixRecord) -> Iterator[str]:
    """Yields a row for all requirements that broke in the same cells, but not wherever they can be
    asked."""
    rows = told_rows(record)
    if rows:
        yield from ["## Requirements", ""]
        yield from header("what broke", "requirements", *columns_of(record))
        for (what, signs), names in rows.items():
            marks = (OUTCOME_SIGNS.get(each, "") for each in signs)
            yield line(what, _named(names), *marks)
        yield ""


def columns_of(record: MatrixRecord) -> list[str]:
    """Returns a short name for each cell: on an ordered axis the value, else what is not the base."""
    if record.is_ordered:
        return [", ".join(each.settings.values()) for each in record.cells]
    return [words_of(unlike(each.settings, record.base), ", ") or "base" for each in record.cells]


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{each}`" for each in names[:MOST_NAMED])
    more = len(names) - MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown
