"""The options of a benchmark run, as pytest's parser knows them: workloads, sizes, models, laps.

This module imports no torch; `batchproof.plugin.bench_selection` reads what was given.
"""

from __future__ import annotations

import pytest

from batchproof.bench.spec_files import workload_names
from batchproof.errors import UsageError
from batchproof.models.shapes import SHAPES
from batchproof.plugin.numbers import seconds, whole

DEFAULT_LAPS = 5
DEFAULT_SHAPE = {"cpu": "tiny", "cuda": "llama-1b"}  # any other device gets the CPU's
GROWTH_S = 15.0  # for all engines together
THROUGHPUT, GROWTH = "throughput", "growth"
FIXTURES = frozenset((THROUGHPUT, GROWTH))  # a test that asks for one is a benchmark
SIZES = ("num-requests", "prompt-len", "cap", "slots", "seed")
OPTIONS = (*("workload", *SIZES, "shape", "laps", "verify", "growth-for", "threads", "pin", "results"),)


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
    text = (
        f"seconds to measure how the time of a step grows with its sequences (default: {GROWTH_S:g}; "
        "0, which is not at all, where a workload is named)"
    )
    add("--growth-for", type=seconds("--growth-for"), metavar="S", help=text)
    text = "threads that each engine may compute with on a CPU (default: 1)"
    add("--threads", type=whole("--threads"), metavar="N", help=text)
    text = "CPU cores that everything runs on, as in 0,2 or 4-7 (default: those of this process)"
    add("--pin", metavar="CORES", help=text)
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
    add("--seed", type=whole("--seed"), metavar="N", help="seed of prompts and caps")


def require_none(config: pytest.Config) -> None:
    """Raises `UsageError` if one of these options is given to a run that is no benchmark."""
    given = [f"--{name}" for name in OPTIONS if config.getoption(f"--{name}") is not None]
    if given:
        raise UsageError(f"{given[0]} belongs to benchmarks: add --benchmark-only, or leave it out")
