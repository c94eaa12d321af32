"""The page of a matrix: its cells, and for all that broke where it did and what decides it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from batchproof.judgement.axes import unlike, words_of
from batchproof.judgement.deciding import MOST_TOGETHER
from batchproof.judgement.output import LEGEND, PAGE, signs_of
from batchproof.records.matrix import Difference, MatrixRecord, is_told, rows_of, told_rows
from batchproof.records.texts import counted, header, line, some_of
from batchproof.records.verdict import RequirementOutcome
from batchproof.requirements.promises import Promise

OUTCOME_SIGNS: Mapping[RequirementOutcome, str] = {
    "held": "✓",
    "failed": "✗",
    "known": "✗",
    "error": "?",
    "not run": "?",
}


def matrix_page(record: MatrixRecord) -> str:
    lines = [f"# {record.engine}: {_counted(record)}", ""]
    if not record.is_complete:
        lines += ["**INCOMPLETE**: it was stopped, or a cell could not be judged.", ""]
    lines += [*summary_lines(record), "", *record.made.lines()]
    lines.append(f"* suite: version {record.suite.version}, digest {record.suite.digest}")
    minutes = sum(each.minutes for each in record.cells)
    lines.append(
        f"* {minutes:.1f} min for the cells; {counted(record.num_probes, 'run')} of requirements alone"
    )
    lines += ["", "## Axes", "", "The first value of each is the base.", ""]
    lines += [f"* {name}: {', '.join(values)}" for name, values in record.axes.items()]
    lines += ["", "## Cells", "", *_cells(record), "", LEGEND, ""]
    if record.outcomes:
        lines += ["## What broke, and what decides", "", *_broken(record), ""]
    return "\n".join(lines)


def summary_lines(record: MatrixRecord) -> list[str]:
    """Returns a sentence for the whole, one for each finding that a setting decides, one for each cell
    that is not judged, and one for each value of an axis that the machine cannot have."""
    num = sum(each.num_requests for each in record.cells)
    told: dict[str, list[str]] = {}
    for each in sorted(record.differences, key=lambda each: (-len(each.requirements), each.what)):
        if each.decisive:
            told.setdefault(sentence(each, record), []).append(each.what)
    told_names = {name for names in told_rows(record).values() for name in names}
    broken = "no requirement is broken."
    if record.outcomes:
        broken = (
            f"{counted(len(record.outcomes), 'requirement')} broken in some, of which "
            f"{len({*record.outcomes} - told_names)} wherever they could be asked."
        )
    named = zip(columns_of(record), record.cells, strict=True)
    unjudged = [f"{name}: {each.why_not}" for name, each in named if each.why_not]
    if record.num_missing:
        unjudged.append(f"{record.num_missing} more")
    return [
        f"{record.engine} was asked in {_counted(record)}, {num:,} answers: {broken}",
        *(f"* {how}: {'; '.join(dict.fromkeys(what))}" for how, what in told.items()),
        *(f"* not judged: {each}" for each in unjudged),
        *(f"* left out: {each}" for each in record.left_out),
    ]


def _counted(record: MatrixRecord) -> str:
    return counted(len(record.cells), "release" if record.is_ordered else "configuration")


def sentence(found: Difference, record: MatrixRecord) -> str:
    """Returns what decides: `breaks with dtype=bfloat16 and compiled=true, holds without either`."""
    if not found.decisive and not found.unasked:
        return f"not decided by one setting ({found.note})"
    if record.is_ordered:
        return _change(found, record)
    sought = {name: found.at[name] for name in (*found.decisive, *found.unasked)}
    broken = f"breaks with {words_of(sought)}"
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


def _cells(record: MatrixRecord) -> Iterator[str]:
    yield from header("cell", "answers", "minutes", *(each.id for each in Promise))
    for each, name in zip(record.cells, columns_of(record), strict=True):
        shown = f"[{name}]({each.folder}/{PAGE})" if each.promises else name
        yield line(shown, f"{each.num_requests:,}", f"{each.minutes:.1f}", *signs_of(each.promises))


def _broken(record: MatrixRecord) -> Iterator[str]:
    """Yields a row for all requirements that broke in the same cells, first those that held in one."""
    yield from header("what broke", "requirements", "what decides", *columns_of(record))
    rows = sorted(rows_of(record).items(), key=lambda row: not is_told(row[0][1]))
    for (what, signs), names in rows:
        found = [
            _decided(each, record)
            for each in record.differences
            if (each.what, {*each.requirements}) == (what, {*names})
        ]
        unsearched = "not searched within the allowed runs" if is_told(signs) else "holds nowhere"
        marks = (OUTCOME_SIGNS.get(each, "") for each in signs)
        yield line(what, some_of(names), "; ".join(found) or unsearched, *marks)
    yield ""
    yield f"A row's first requirement is asked alone, of a finding up to {MOST_TOGETHER} together."


def _decided(found: Difference, record: MatrixRecord) -> str:
    sought = {**found.decisive, **found.unasked}
    other = unlike(found.at, record.base)
    rest = {name: value for name, value in other.items() if name not in sought}
    return f"**{sentence(found, record)}**{f', at {words_of(rest)}' if rest else ''}"


def columns_of(record: MatrixRecord) -> list[str]:
    """Returns a short name for each cell: on an ordered axis the value, else what is not the base."""
    if record.is_ordered:
        return [", ".join(each.settings.values()) for each in record.cells]
    return [words_of(unlike(each.settings, record.base), ", ") or "base" for each in record.cells]
