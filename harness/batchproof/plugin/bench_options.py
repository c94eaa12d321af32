"""The options of a benchmark run: workloads, sizes, models, laps. Only with `--benchmark-only`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from batchproof.bench.growth import GrowthBudget
from batchproof.bench.metrics import SLO_KEYS
from batchproof.bench.result_rows import Terms
from batchproof.bench.spec import BenchSpec
from batchproof.bench.spec_files import chosen, override, workload_names
from batchproof.errors import UsageError
from batchproof.models.shapes import SHAPES
from batchproof.plugin.numbers import seconds, whole
from batchproof.validation.values import at_least, one_of, require, whole_number
from batchproof.workload.workloads import DEFAULT_TIME_LIMIT_S

DEFAULT_LAPS = 5
DEFAULT_SHAPE = {"cpu": "tiny", "cuda": "llama-1b"}  # any other device gets the CPU's
TIME_LIMIT_S = 600.0  # of a round, unless --engine-time-limit says otherwise
SIZES = ("num-requests", "prompt-len", "cap", "slots", "seed")
OPTIONS = ("workload", *SIZES, "shape", "laps", "verify", "goodput", "growth-for", "threads", "results")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Holds the validated command line of a benchmark run."""

    specs: tuple[BenchSpec, ...]
    model_names: tuple[str, ...]
    terms: Terms
    num_threads: int | None  # None: torch's own choice
    results: str | None
    growth_s: float  # seconds for each axis of cost growth; 0: it is not measured


def add_options(parser: pytest.Parser) -> None:
    """Adds the options to pytest's parser."""
    group = parser.getgroup("batchproof-benchmarks", "Batchproof: benchmarks, with --benchmark-only")
    _add_sizes(group)
    add, shapes = group.addoption, ", ".join(SHAPES)
    defaults = f"{DEFAULT_SHAPE['cpu']}, on a GPU {DEFAULT_SHAPE['cuda']}"
    text = f"model by shape, with random weights, repeatable: {shapes} (default: {defaults})"
    add("--shape", action="append", metavar="SHAPE", help=f"{text}; or give --model")
    add(
        "--laps",
        type=whole("--laps"),
        metavar="N",
        help=f"timed rounds of each engine (default: {DEFAULT_LAPS})",
    )
    text = (
        "requests of each round whose tokens are checked (default: all if they are few, else a "
        "sample of 16); ids, lengths and finish reasons always are"
    )
    add("--verify", metavar="all|N", help=text)
    text = f"latency limits a good request meets: {', '.join(SLO_KEYS)}, as in ttft:200 tpot:50"
    add("--goodput", action="append", nargs="+", metavar="KEY:MS", help=text)
    text = (
        f"seconds to measure each axis of cost growth (default: {GrowthBudget().axis_s:g}; 0, which "
        "is none, where a workload is named)"
    )
    add("--growth-for", type=seconds("--growth-for"), metavar="S", help=text)
    add(
        "--threads", type=whole("--threads"), metavar="N", help="threads of torch on a CPU (default: 1)"
    )
    text = "where to write the result file (default: a new one below results/benchmarks/)"
    add("--results", metavar="FILE", help=text)


def _add_sizes(group: pytest.OptionGroup) -> None:
    """The workload, and the options that change its size."""
    add, names = group.addoption, ", ".join(workload_names())
    text = (
        f"repeatable: {names} (default: all of these), or a YAML file like theirs in "
        "cases/benchmarks, or a folder of such files"
    )
    add("--workload", action="append", metavar="NAME", help=text)
    add(
        "--num-requests",
        type=whole("--num-requests"),
        metavar="N",
        help="number of requests, instead of the workload's own",
    )
    add("--prompt-len", metavar="LO:HI", help="prompt lengths in tokens, uniform")
    add("--cap", metavar="LO:HI", help="max_new_tokens, uniform")
    add(
        "--slots", type=whole("--slots"), metavar="N", help="sequences in flight at once (max_num_seqs)"
    )
    add("--seed", type=whole("--seed"), metavar="N", help="seed of prompts, caps and arrivals")


def bench_options(config: pytest.Config, device: torch.device) -> BenchOptions | None:
    """Returns the options, or None in a run that is no benchmark. Raises `UsageError`."""
    if not config.getoption("--benchmark-only"):
        given = [f"--{name}" for name in OPTIONS if config.getoption(f"--{name}") is not None]
        if given:
            raise UsageError(f"{given[0]} belongs to benchmarks: add --benchmark-only, or leave it out")
        return None
    get = config.getoption
    limit_s = get("--engine-time-limit")
    names = get("--workload") or ()
    specs = [
        override(
            spec,
            num_requests=get("--num-requests"),
            prompt_len=get("--prompt-len"),
            cap=get("--cap"),
            slots=get("--slots"),
            seed=get("--seed"),
        )
        for spec in chosen(names, on_cpu=device.type != "cuda")
    ]
    num_threads = _num_threads(get("--threads"), device)
    terms = Terms(
        num_laps=at_least("--laps", DEFAULT_LAPS if get("--laps") is None else get("--laps"), 1),
        # The process time of one thread is independent of other load.
        clock="process" if num_threads == 1 else "wall",
        sample_size=_sample_size(get("--verify")),
        slo_ms=_limits(get("--goodput") or ()),
        time_limit_s=TIME_LIMIT_S if limit_s == DEFAULT_TIME_LIMIT_S else limit_s,
    )
    return BenchOptions(
        specs=tuple(specs),
        model_names=_model_names(get("--shape"), get("--model"), device),
        terms=terms,
        num_threads=num_threads,
        results=get("--results"),
        growth_s=_growth_seconds(get("--growth-for"), bool(names)),
    )


def _model_names(
    shapes: Sequence[str] | None, models: Sequence[str] | None, device: torch.device
) -> tuple[str, ...]:
    for name in shapes or ():
        one_of("--shape", name, SHAPES)
    if shapes and models:
        raise UsageError(f"--shape {shapes[0]!r} and --model {models[0]!r} exclude each other")
    default = DEFAULT_SHAPE.get(device.type, DEFAULT_SHAPE["cpu"])
    return tuple(dict.fromkeys(shapes or models or [default]))


def _growth_seconds(given: float | None, names_workload: bool) -> float:
    if given is None:
        return 0.0 if names_workload else GrowthBudget().axis_s
    require(0 <= given <= 86_400, "--growth-for", f"{given:g}", "0 to 86400 seconds")
    return given


def _sample_size(text: str | None) -> int | None:
    """Returns how many requests to check in each round, or None for as many as is cheap.

    `all` becomes a number that no round reaches. With 0 the rows state that nothing was checked.
    """
    if text is None:
        return None
    if text == "all":
        return 1 << 60
    return whole_number("--verify", text, "'all' or a number of requests")


def _limits(given: Sequence[Sequence[str]]) -> dict[str, float]:
    limits: dict[str, float] = {}
    for part in [part for group in given for text in group for part in text.split(",")]:
        key, _, value = part.partition(":")
        if key not in SLO_KEYS or not re.fullmatch(r"\d+(\.\d+)?", value) or not float(value):
            raise UsageError(
                f"--goodput {part!r} must read KEY:MILLISECONDS with a KEY of {', '.join(SLO_KEYS)} "
                f"and a number above 0"
            )
        if key in limits:
            raise UsageError(f"--goodput gives {key!r} twice")
        limits[key] = float(value)
    return limits


def _num_threads(given: int | None, device: torch.device) -> int | None:
    if given is None:
        return 1 if device.type == "cpu" else None
    return at_least("--threads", given, 1)
