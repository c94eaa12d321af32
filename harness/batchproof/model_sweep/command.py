"""`python -m batchproof models`: which causal LMs of transformers does an engine serve, and does it
refuse the others when it is built? Every type of the mapping is tried as a tiny random model.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import torch

from batchproof.api import EngineConfig
from batchproof.campaign import choices
from batchproof.campaign.progress import Progress
from batchproof.errors import UnsupportedModelError
from batchproof.model_sweep.judge import (
    Finding,
    Task,
    Verdict,
    judge,
)
from batchproof.model_sweep.page import models_page
from batchproof.model_sweep.toys import Toy, model_types, toys_of
from batchproof.model_sweep.workers import Lost, work
from batchproof.models.random_models import build_llama_random
from batchproof.provenance import made_now
from batchproof.records.files import replace_text
from batchproof.records.sweep import MODEL_SWEEP, ModelSweepRecord, SweepCounts, ToyRecord
from batchproof.run.registry import resolve_engine

ENGINE = "paged"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("types", nargs="*", metavar="TYPE", help="model types (default: all)")
    parser.add_argument(
        "--engine", default=ENGINE, metavar="E", help="as for pytest (default: %(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=choices.whole,
        default=0,
        metavar="S",
        help="of weights and prompts (default: %(default)s)",
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
    """0 if nothing is wrong, else 1. What is less than all types before the default engine, or was
    stopped with Ctrl-C, is written beside the whole: models-partial.json and .md."""
    known = model_types()
    types = choices.chosen(arguments.types, known, "causal LM of this version of transformers")
    _try(arguments.engine)
    output = choices.writable(arguments.output)
    toys = [toy for model_type in types for toy in toys_of(model_type)]
    found: dict[Toy, Finding] = {}
    progress = Progress("models", "toy", len(toys), arguments.progress)
    is_complete = False
    try:
        _fill(found, toys, arguments, progress)
        is_complete = True
    finally:  # whatever stopped it: what is done is kept
        progress.close()
        record = _record(found, toys, arguments, is_complete)
        is_whole = is_complete and types == list(known) and arguments.engine == ENGINE
        _write(record, output, is_whole)
    return _conclude(record)


def _try(engine: str) -> None:
    """What is wrong with the engine or its options is said at once, and once. Raises `UsageError` or
    `ConfigError`."""
    factory = resolve_engine(engine).factory
    with suppress(UnsupportedModelError):  # others it may serve
        factory(build_llama_random(), EngineConfig())


def _fill(
    found: dict[Toy, Finding], toys: list[Toy], arguments: argparse.Namespace, progress: Progress
) -> None:
    limit = arguments.time_limit
    tasks = [Task(toy, arguments.engine, arguments.seed, limit) for toy in toys]
    for task, result in work(_judge, tasks, arguments.jobs, limit):
        found[task.toy] = Finding(Verdict.WRONG, result.why) if isinstance(result, Lost) else result
        progress.step(note=f"{task.toy}: {found[task.toy].verdict}")


def _judge(task: Task) -> Finding:
    """In a worker: they share the cores."""
    torch.set_num_threads(1)
    return judge(task)


def _record(
    found: Mapping[Toy, Finding], toys: list[Toy], arguments: argparse.Namespace, is_complete: bool
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


def _counted(found: Iterable[Finding]) -> dict[str, int]:
    counts = Counter(each.verdict for each in found)
    return {str(verdict): counts[verdict] for verdict in Verdict}


def _toy_record(toy: Toy, found: Finding) -> ToyRecord:
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


def _write(record: ModelSweepRecord, output: Path, is_whole: bool) -> None:
    path = output / ("models.json" if is_whole else "models-partial.json")
    MODEL_SWEEP.write(record, path)
    replace_text(path.with_suffix(".md"), models_page(record))
    print(f"written: {path} and {path.with_suffix('.md').name}", file=sys.stderr)


def _conclude(record: ModelSweepRecord) -> int:
    wrong = [toy for toy in record.toys if toy.verdict == Verdict.WRONG]
    for toy in wrong:
        print(f"WRONG {toy.name}: {toy.reason}")
    counts = record.counts.types.items()
    print(", ".join(f"{count} {verdict}" for verdict, count in counts), "of the types")
    return 1 if wrong else 0
