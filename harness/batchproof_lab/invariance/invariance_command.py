"""`batchproof invariance ENGINE...`: the grade of invariance that each engine reaches on each axis."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import torch

from batchproof.cli import choices
from batchproof.cli.config_file import OWN, find, required_engines
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.errors import ConfigError, EngineHang, Interrupt, UsageError
from batchproof.models.catalogue import resolve_dtype
from batchproof.models.embedded import DTYPES, EMBEDDED
from batchproof.records.invariance import INVARIANCE, EngineRecord, InvarianceRecord
from batchproof.records.provenance import made_now
from batchproof.run.invariance.axes import AXES
from batchproof.run.invariance.measure import measure_engine
from batchproof.run.invariance.serving import num_threads
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec, resolve_engine
from batchproof.run.time_limit import contained
from batchproof_lab.invariance.invariance_page import invariance_page, tables
from batchproof_lab.shared_laboratory import exact_device

DEFAULT_MODELS = ("gpt2-hash", "llama-random")
DEFAULT_DTYPES = ("float32",)
SEED = 0
TIME_LIMIT_S = 60.0  # of an engine call


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choices.add_engines(parser, f"as for pytest --engine (default: those of {OWN})")
    choices.add_repeatable(
        parser,
        "--model",
        "M",
        f"{', '.join(EMBEDDED)}, or a causal LM by hub id or path; repeatable "
        f"(default: {' and '.join(DEFAULT_MODELS)})",
    )
    dtypes = f"{', '.join(DTYPES)}; repeatable (default: {' and '.join(DEFAULT_DTYPES)})"
    choices.add_repeatable(parser, "--dtype", "D", dtypes)
    choices.add_repeatable(parser, "--axis", "A", f"{', '.join(AXES)}; repeatable (default: all)")
    parser.add_argument("--device", default="cpu", help="where the models are (default: cpu)")
    parser.add_argument(
        "--seed", type=choices.whole, default=SEED, metavar="N", help="of contents (default: 0)"
    )
    choices.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every engine has its grades, 1 if a negative control failed, an engine could not be
    used, or one raised or ran out of time along an axis. A run over some axes, or stopped with Ctrl-C,
    is written to `invariance-partial.*`.

    Raises `UsageError` for an unknown engine, model, dtype, axis or device.
    """
    axes = choices.chosen(arguments.axis, AXES, "axis of invariance")
    engines = arguments.engines or required_engines(find())
    specs = [resolve_engine(text) for text in dict.fromkeys(engines)]
    models = list(dict.fromkeys(arguments.model or DEFAULT_MODELS))
    with exact_device(arguments.device) as device, num_threads(1):
        labs = _laboratories(device, arguments.dtype or DEFAULT_DTYPES, models)
        for spec in specs:
            _try(labs[0], spec, models[0])
        output = choices.writable(arguments.output)
        progress = Progress("invariance", "grade", len(labs) * len(models) * len(specs) * len(axes))
        found: list[EngineRecord] = []
        exit_code = 0
        try:
            for record in _measured(labs, models, specs, axes, arguments.seed, progress):
                found.append(record)
        except Interrupt as interrupt:
            exit_code = interrupt.exit_code
        progress.close()
    is_whole = exit_code == 0 and len(axes) == len(AXES)
    result = InvarianceRecord(made_now(), is_whole, str(device), arguments.seed, tuple(found))
    write_result(INVARIANCE, result, invariance_page, output, "invariance", is_whole)
    print("\n".join(tables(result)))
    has_failed = (each.refusal or any(axis.has_failed for axis in each.axes) for each in found)
    return exit_code or int(any(has_failed))


def _laboratories(
    device: torch.device, dtypes: Sequence[str], models: Sequence[str]
) -> list[Laboratory]:
    """Returns one for each dtype, with the models loaded, so that a wrong name is reported at once.
    Raises `UsageError`."""
    resolved = [resolve_dtype(each) for each in dict.fromkeys(dtypes)]
    labs = [Laboratory(device, dtype, TIME_LIMIT_S) for dtype in resolved]
    for lab in labs:
        for model in models:
            lab.subject(model)
    return labs


def _try(lab: Laboratory, spec: EngineSpec, model: str) -> None:
    """Builds the engine once, so that a mistake in its options is reported before the work is done.
    Raises `UsageError` or `ConfigError`."""
    try:
        with contained():
            lab.capabilities(spec, lab.subject(model))
    except (UsageError, ConfigError):
        raise
    except (Exception, EngineHang):
        return  # it may serve other models; its row says what happened on this one


def _measured(
    labs: Sequence[Laboratory],
    models: Sequence[str],
    specs: Sequence[EngineSpec],
    axes: Sequence[str],
    seed: int,
    progress: Progress,
) -> Iterator[EngineRecord]:
    for lab in labs:
        for model in models:
            for spec in specs:
                record = measure_engine(lab, spec, model, [AXES[each] for each in axes], seed)
                progress.step(len(axes), f"{spec.name} on {model}")
                yield record
