"""What a benchmark run is about, resolved from the command line. Only with `--benchmark-only`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from batchproof.bench.result_rows import Terms
from batchproof.bench.spec import BenchSpec
from batchproof.bench.spec_files import override, select_specs
from batchproof.errors import UsageError
from batchproof.models.shapes import SHAPES
from batchproof.plugin.bench_options import DEFAULT_LAPS, DEFAULT_SHAPE, ROUND_LIMIT_S
from batchproof.validation.values import at_least, one_of, require

SIZES = ("num_requests", "prompt_len", "cap", "slots", "seed")  # of a workload, by their flags


@dataclass(frozen=True, slots=True)
class BenchSelection:
    """Holds the validated command line of a benchmark run."""

    specs: tuple[BenchSpec, ...]
    model_names: tuple[str, ...]
    terms: Terms
    num_threads: int | None  # None: torch's own choice
    results: str | None


def bench_selection(config: pytest.Config, device_type: str) -> BenchSelection:
    """Returns the command line of a benchmark run, resolved. Raises `UsageError`."""
    get = config.getoption
    limit_s = get("--engine-time-limit")
    specs = [
        override(spec, **{size: get(f"--{size.replace('_', '-')}") for size in SIZES})
        for spec in select_specs(get("--workload") or (), on_cpu=device_type != "cuda")
    ]
    num_threads = get("--threads")
    if num_threads is not None:
        cores = os.cpu_count() or num_threads
        require(
            1 <= num_threads <= cores, "--threads", num_threads, f"from 1 to {cores}, the cores here"
        )
    elif device_type == "cpu":
        num_threads = 1
    terms = Terms(
        num_laps=at_least("--laps", DEFAULT_LAPS if get("--laps") is None else get("--laps"), 1),
        # The process time of one thread is independent of other load.
        clock="process" if num_threads == 1 else "wall",
        sample_size=_sample_size(get("--verify")),
        time_limit_s=ROUND_LIMIT_S if limit_s is None else limit_s,
        measures_memory=bool(get("--memory")),
    )
    model_names = _model_names(get("--shape"), get("--model"), device_type)
    for spec, name in product(specs, [each for each in model_names if each in SHAPES]):
        shape: Any = SHAPES[name].config()  # of others the context is known when they are loaded
        spec.realise(shape.vocab_size, shape.max_position_embeddings)
    return BenchSelection(
        specs=tuple(specs),
        model_names=model_names,
        terms=terms,
        num_threads=num_threads,
        results=get("--results"),
    )


def _model_names(
    shapes: Sequence[str] | None, models: Sequence[str] | None, device_type: str
) -> tuple[str, ...]:
    for name in shapes or ():
        one_of("--shape", name, SHAPES)
    if shapes and models:
        raise UsageError(f"--shape {shapes[0]!r} and --model {models[0]!r} exclude each other")
    default = DEFAULT_SHAPE.get(device_type, DEFAULT_SHAPE["cpu"])
    return tuple(dict.fromkeys(shapes or models or [default]))


def _sample_size(text: str | None) -> int | None:
    """How many requests to check in each round, or None for as many as is cheap. `all` becomes a number
    that no round reaches. With 0 the rows state that nothing was checked."""
    if text is None:
        return None
    if text == "all":
        return 1 << 60
    is_number = text.isascii() and text.isdigit()
    require(is_number, "--verify", repr(text), "'all' or a number of requests")
    return int(text)
