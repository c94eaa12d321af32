"""The measured grades of invariance as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batchproof.records.invariance import UNMEASURED, AxisRecord, EngineRecord, InvarianceRecord
from batchproof.records.markdown import header, line
from batchproof.run.invariance.axes import ALL

LEGEND = """\
One request is served in two settings that differ along one axis. The grade says what stays:

* **B**: every bit of its logits, although the shapes differ.
* **S**: every bit if the shapes are the same and only other requests' contents differ; along the axis
  itself, all logits within kappa E. Where the axis keeps all shapes, S is the best grade.
* **E**: all logits within kappa E, the bound that rounding explains.
* **T**: all tokens, on a model whose margins rounding cannot bridge; logits beyond kappa E, or none.
* **-**: none of these.

`?` marks a grade whose event no trace shows. `(n)` is not measured; the reasons are below. A negative
control precedes each row: another last token of the prompt must get grade -, and an ulp of noise on
the logits grade E. `harness/batchproof/run/invariance/grades.py` defines the grades, `axes.py` the
settings. torch computes on one thread, except on the axis `threads`."""


def invariance_page(record: InvarianceRecord) -> str:
    lines = ["# Invariance, graded", "", *record.made.lines()]
    lines += [f"* device {record.device}, seed {record.seed}", ""]
    if not record.is_complete:
        lines += ["INCOMPLETE: it was stopped, or restricted to some axes.", ""]
    lines += [LEGEND, "", *header("axis", "changed setting")]
    measured = {axis.axis for engine in record.engines for axis in engine.axes}
    lines += [line(axis.name, axis.what) for axis in ALL if axis.name in measured]
    return "\n".join([*lines, "", *tables(record), ""])


def tables(record: InvarianceRecord) -> Iterator[str]:
    """Yields, for each model and dtype, the grades and the differences of all engines, then the reasons
    for what is not measured."""
    reasons: dict[str, int] = {}
    subjects = dict.fromkeys((each.model, each.dtype) for each in record.engines)
    for model, dtype in subjects:
        engines = [each for each in record.engines if (each.model, each.dtype) == (model, dtype)]
        yield from [f"## {model} in {dtype}", ""]
        yield from _graded(engines, reasons)
        yield from ["", *_differences(engines), ""]
    if reasons:
        yield from ["## Not measured", ""]
        yield from (f"{number}. {reason}" for reason, number in reasons.items())


def _graded(engines: Sequence[EngineRecord], reasons: dict[str, int]) -> Iterator[str]:
    names = _axes(engines)
    yield from header("grade", *names)
    for engine in engines:
        if engine.refusal:
            number = reasons.setdefault(f"`{engine.engine}`: {engine.refusal}", len(reasons) + 1)
            yield line(f"`{engine.engine}`", *(f"({number})" for _ in names))
        else:
            yield line(f"`{engine.engine}`", *(_cell(each, reasons) for each in engine.axes))


def _axes(engines: Sequence[EngineRecord]) -> list[str]:
    """Returns the names of the axes that any engine was measured along."""
    return list(dict.fromkeys(axis.axis for engine in engines for axis in engine.axes)) or ["-"]


def _cell(axis: AxisRecord, reasons: dict[str, int]) -> str:
    if axis.grade == UNMEASURED:
        return f"({reasons.setdefault(f'{axis.axis}: {axis.reason}', len(reasons) + 1)})"
    return f"{axis.grade}?" if axis.evidence == "not shown" else axis.grade


def _differences(engines: Sequence[EngineRecord]) -> Iterator[str]:
    """Yields the table of the largest differences of a logit, in units of E."""
    known = [each for each in engines if not each.refusal and each.error_unit is not None]
    if not known:
        return
    unit, kappa = known[0].error_unit, known[0].kappa
    yield f"The largest difference of a logit in units of E, {unit:.2g}; kappa is {kappa:g}."
    yield ""
    yield from header("worst", *_axes(known))
    for engine in known:
        yield line(f"`{engine.engine}`", *map(_worst, engine.axes))


def _worst(axis: AxisRecord) -> str:
    return "" if axis.worst is None else "0" if axis.worst == 0 else f"{axis.worst:.2g}"
