"""`python -m batchproof models`: which causal LMs of transformers does an engine serve, and does it
refuse the others when it is built? Every type of the library is tried as a tiny random model."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from batchproof.api import EngineConfig
from batchproof.campaign import choices
from batchproof.campaign.progress import Progress
from batchproof.errors import UnsupportedModelError
from batchproof.model_sweep.sweep_page import models_page
from batchproof.model_sweep.toy_check import ToyResult, ToyTask, ToyVerdict, check_toy
from batchproof.model_sweep.toys import Toy, model_types, toys_of
from batchproof.models.random_models import build_llama_random
from batchproof.provenance import provenance
from batchproof.run.registry import resolve_engine
from batchproof.worker_pool import LostTask, WorkerPool

SCHEMA_VERSION = 1
ENGINE = "paged"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to its parser."""
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
        data = _as_data(found, toys, arguments) | {"made": provenance(), "is_complete": is_complete}
        is_whole = is_complete and types == list(known) and arguments.engine == ENGINE
        _write(data, output, is_whole)
    return _conclude(data)


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


def _as_data(
    found: Mapping[Toy, ToyResult], toys: list[Toy], arguments: argparse.Namespace
) -> dict[str, Any]:
    done = [toy for toy in toys if toy in found]
    counts = {
        what: Counter(str(found[toy].verdict) for toy in done if bool(toy.form) is is_form)
        for what, is_form in (("types", False), ("forms", True))
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "engine": arguments.engine,
        "seed": arguments.seed,
        "num_types": len({toy.model_type for toy in toys}),
        "counts": {
            what: {each: counted[each] for each in ToyVerdict} for what, counted in counts.items()
        },
        "toys": [{"type": toy.model_type, "form": toy.form} | asdict(found[toy]) for toy in done],
    }


def _write(data: dict[str, Any], output: Path, is_whole: bool) -> None:
    path = output / ("models.json" if is_whole else "models-partial.json")
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(models_page(data), encoding="utf-8")
    print(f"written: {path} and {path.with_suffix('.md').name}", file=sys.stderr)


def _conclude(data: dict[str, Any]) -> int:
    wrong = [toy for toy in data["toys"] if toy["verdict"] == ToyVerdict.WRONG]
    for toy in wrong:
        name = ", ".join(filter(None, (toy["type"], toy["form"])))
        print(f"WRONG {name}: {toy['reason']}")
    counts = data["counts"]["types"]
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), "of the types")
    return 1 if wrong else 0
