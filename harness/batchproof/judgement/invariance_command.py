"""`batchproof invariance ENGINE...`: the grade of invariance that each engine reaches on each axis."""

import argparse
from collections.abc import Iterator, Sequence
from itertools import product

from batchproof.cli import choices
from batchproof.cli.config_file import OWN, find, required_engines
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.errors import ConfigError, Interrupt, UsageError
from batchproof.invariance.axes import AXES
from batchproof.invariance.measure import measure_engine
from batchproof.models.catalogue import resolve_dtype
from batchproof.models.embedded import DTYPES, EMBEDDED
from batchproof.records.invariance import (
    INVARIANCE,
    UNMEASURED,
    AxisRecord,
    EngineRecord,
    InvarianceRecord,
)
from batchproof.records.provenance import made_now
from batchproof.records.texts import header, line
from batchproof.run.devices import exact_device, num_threads
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import resolve_engine

DEFAULT_MODELS = ("gpt2-hash", "llama-random", "mistral-window")  # the last has adapters
DEFAULT_DTYPES = ("float32",)
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
the logits grade E. `harness/batchproof/invariance/grades.py` defines the grades, `axes.py` the
settings. torch computes on one thread, except on the axis `threads`."""
TIME_LIMIT_S = 60.0  # of an engine call


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choices.add_engines(parser, f"as for pytest --engine (default: those of {OWN})")
    choices.add_repeatable(
        parser,
        "--model",
        "M",
        f"{', '.join(EMBEDDED)}, or a causal LM by hub id or path; repeatable "
        f"(default: {', '.join(DEFAULT_MODELS)})",
    )
    dtypes = f"{', '.join(DTYPES)}; repeatable (default: {' and '.join(DEFAULT_DTYPES)})"
    choices.add_repeatable(parser, "--dtype", "D", dtypes)
    choices.add_repeatable(parser, "--axis", "A", f"{', '.join(AXES)}; repeatable (default: all)")
    parser.add_argument("--device", default="cpu", help="where the models are (default: cpu)")
    choices.add_seed(parser)
    choices.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every engine has its grades, 1 if a negative control failed, an engine could not be
    used, or one raised or ran out of time along an axis. A run over some axes, or stopped with Ctrl-C,
    is written to `invariance-partial.*`. Raises `UsageError` for an unknown engine, model, dtype, axis
    or device."""
    axes = choices.select_names(arguments.axis, AXES, "axis of invariance")
    engines = arguments.engines or required_engines(find())
    specs = [resolve_engine(text) for text in dict.fromkeys(engines)]
    models = list(dict.fromkeys(arguments.model or DEFAULT_MODELS))
    with exact_device(arguments.device) as device, num_threads(1):
        dtypes = dict.fromkeys(map(resolve_dtype, arguments.dtype or DEFAULT_DTYPES))
        labs = [Laboratory(device, dtype, TIME_LIMIT_S) for dtype in dtypes]
        for model in models:  # a wrong name is reported before the work is done
            labs[0].subject(model)
        output = choices.writable(arguments.output)
        progress = Progress("invariance", "grade", len(labs) * len(models) * len(specs) * len(axes))
        found: list[EngineRecord] = []
        stopped: Interrupt | UsageError | ConfigError | None = None
        try:
            for lab, model, spec in product(labs, models, specs):
                measured = [AXES[each] for each in axes]
                found.append(measure_engine(lab, spec, model, measured, arguments.seed))
                progress.step(len(axes), f"{spec.name} on {model}")
        except (Interrupt, UsageError, ConfigError) as reason:  # what was found before is kept
            if not found:
                raise
            stopped = reason
        progress.close()
    is_whole = stopped is None and len(axes) == len(AXES)
    result = InvarianceRecord(made_now(), is_whole, str(device), arguments.seed, tuple(found))
    write_result(INVARIANCE, result, invariance_page, output, "invariance", is_whole)
    print("\n".join(tables(result)))
    if stopped is not None:
        raise stopped
    return int(any(each.refusal or any(axis.has_failed for axis in each.axes) for each in found))


def invariance_page(record: InvarianceRecord) -> str:
    lines = ["# Invariance, graded", "", *record.made.lines()]
    lines += [f"* device {record.device}, seed {record.seed}", ""]
    if not record.is_complete:
        lines += ["INCOMPLETE: it was stopped, or restricted to some axes.", ""]
    lines += [LEGEND, "", *header("axis", "changed setting")]
    measured = {axis.axis for engine in record.engines for axis in engine.axes}
    lines += [line(axis.name, axis.what) for axis in AXES.values() if axis.name in measured]
    return "\n".join([*lines, "", *tables(record), ""])


def tables(record: InvarianceRecord) -> Iterator[str]:
    """Yields, for each model and dtype, the grades of all engines, then the reasons
    for what is not measured."""
    reasons: dict[str, int] = {}
    subjects = dict.fromkeys((each.model, each.dtype) for each in record.engines)
    for model, dtype in subjects:
        engines = [each for each in record.engines if (each.model, each.dtype) == (model, dtype)]
        yield from [f"## {model} in {dtype}", ""]
        yield from _graded(engines, reasons)
        yield ""
    if reasons:
        yield from ["## Not measured", ""]
        yield from (f"{number}. {reason}" for reason, number in reasons.items())


def _graded(engines: Sequence[EngineRecord], reasons: dict[str, int]) -> Iterator[str]:
    axes = [axis.axis for engine in engines for axis in engine.axes]
    names = list(dict.fromkeys(axes)) or ["-"]
    yield from header("grade", *names)
    for engine in engines:
        if engine.refusal:
            number = reasons.setdefault(f"`{engine.engine}`: {engine.refusal}", len(reasons) + 1)
            yield line(f"`{engine.engine}`", *(f"({number})" for _ in names))
        else:
            yield line(f"`{engine.engine}`", *(_cell(each, reasons) for each in engine.axes))


def _cell(axis: AxisRecord, reasons: dict[str, int]) -> str:
    if axis.grade == UNMEASURED:
        return f"({reasons.setdefault(f'{axis.axis}: {axis.reason}', len(reasons) + 1)})"
    return f"{axis.grade}?" if axis.evidence == "not shown" else axis.grade
