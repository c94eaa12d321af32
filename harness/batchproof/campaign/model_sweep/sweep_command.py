"""`python -m batchproof models`: which causal LMs of transformers does an engine serve, and does it
refuse the others when it is built? Every type of the library is tried as a tiny random model."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

import torch

from batchproof.api import EngineConfig
from batchproof.campaign.model_sweep.sweep_page import models_page
from batchproof.campaign.model_sweep.toy_check import ToyResult, ToyTask, ToyVerdict, check_toy
from batchproof.campaign.model_sweep.toys import Toy, model_types, toys_of
from batchproof.campaign.worker_pool import LostTask, WorkerPool
from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.errors import UnsupportedModelError
from batchproof.models.random_models import build_llama_random
from batchproof.records.made import made_now
from batchproof.records.sweep import MODEL_SWEEP, ModelSweepRecord, SweepCounts, ToyRecord
from batchproof.run.registry import resolve_engine

ENGINE = "paged"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to its parser."""
    parser.add_argument("types", nargs="*", metavar="TYPE", help="model types (default: all)")
    parser.add_argument(
        "--engine",
        default=ENGINE,
        metavar="E",
        help="the engine to try, as for pytest --engine (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=choices.whole,
        default=0,
        metavar="S",
        help="seed of weights and prompts (default: %(default)s)",
    )
    parser.add_argument(
        "--time-limit",
        type=choices.seconds,
        default=120.0,
        metavar="S",
        help="seconds after which a toy is given up (default: %(default)g)",
    )
    choices.add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if nothing is WRONG, else 1. A sweep over some types, of another engine than the
    default, or stopped with Ctrl-C is written to `models-partial.*`."""
    known = model_types()
    types = choices.chosen(arguments.types, known, "causal LM of this version of transformers")
    _try(arguments.engine)
    output = choices.writable(arguments.output)
    toys = [toy for model_type in types for toy in toys_of(model_type)]
    found: dict[Toy, ToyResult] = {}
    progress = Progress("models", "toy", len(toys), arguments.progress)
    is_complete = False
    try:
        _fill(found, toys, arguments, progress)
        is_complete = True
    finally:  # results so far are kept, whatever stopped the sweep
        progress.close()
        record = _record(found, toys, arguments, is_complete)
        is_whole = is_complete and types == list(known) and arguments.engine == ENGINE
        write_result(MODEL_SWEEP, record, models_page, output, "models", is_whole)
    return _conclude(record)


def _try(engine: str) -> None:
    """Builds the engine once, so that a mistake in its name or options is reported once. Raises
    `UsageError` or `ConfigError`."""
    factory = resolve_engine(engine).factory
    with suppress(UnsupportedModelError):  # it may serve others
        factory(build_llama_random(), EngineConfig())


def _fill(
    found: dict[Toy, ToyResult], toys: list[Toy], arguments: argparse.Namespace, progress: Progress
) -> None:
    limit = arguments.time_limit
    tasks = [ToyTask(toy, arguments.engine, arguments.seed, limit) for toy in toys]
    with WorkerPool(min(arguments.jobs, len(tasks)), limit) as pool:
        for task, result in pool.run(_judge, tasks):
            found[task.toy] = _lost(result) if isinstance(result, LostTask) else result
            progress.step(note=f"{task.toy}: {found[task.toy].verdict}")


def _lost(task: LostTask) -> ToyResult:
    return ToyResult(ToyVerdict.WRONG, task.why)


def _judge(task: ToyTask) -> ToyResult:
    """Checks a toy in a worker, on one thread since workers share the cores."""
    torch.set_num_threads(1)
    return check_toy(task)


def _record(
    found: Mapping[Toy, ToyResult], toys: list[Toy], arguments: argparse.Namespace, is_complete: bool
) -> ModelSweepRecord:
    done = [toy for toy in toys if toy in found]
    return ModelSweepRecord(
        made=made_now(),
        is_complete=is_complete,
        engine=arguments.engine,
        seed=arguments.seed,
        num_types=len({toy.model_type for toy in toys}),
        counts=SweepCounts(
            types=_counted(found[toy] for toy in done if not toy.form),
            forms=_counted(found[toy] for toy in done if toy.form),
        ),
        toys=tuple(_toy_record(toy, found[toy]) for toy in done),
    )


def _counted(found: Iterable[ToyResult]) -> dict[str, int]:
    counts = Counter(each.verdict for each in found)
    return {str(verdict): counts[verdict] for verdict in ToyVerdict}


def _toy_record(toy: Toy, found: ToyResult) -> ToyRecord:
    return ToyRecord(
        toy.model_type,
        toy.form,
        str(found.verdict),
        found.reason,
        found.layers,
        found.worst,
        found.error_unit,
        found.num_tokens,
    )


def _conclude(record: ModelSweepRecord) -> int:
    wrong = [toy for toy in record.toys if toy.verdict == ToyVerdict.WRONG]
    for toy in wrong:
        print(f"WRONG {toy.name}: {toy.reason}")
    counts = record.counts.types.items()
    print(", ".join(f"{count} {verdict}" for verdict, count in counts), "of the types")
    return 1 if wrong else 0
