"""The options of a benchmark run, as pytest's parser knows them: workloads, sizes, models, laps.

This module imports no torch; `batchproof.plugin.bench_selection` reads what was given.
"""

from argparse import BooleanOptionalAction
from typing import Any

import pytest

from batchproof.bench.spec_files import workload_names
from batchproof.errors import UsageError
from batchproof.models.shapes import SHAPES

DEFAULT_LAPS = 5
ROUND_LIMIT_S = 600.0  # unless --engine-time-limit says otherwise
DEFAULT_SHAPE = {"cpu": "tiny", "cuda": "llama-1b"}  # any other device gets the CPU's

_HELP = {  # option -> its metavar and text
    "workload": (
        "NAME",
        f"repeatable: {', '.join(workload_names())} (default: all of these), or a YAML file like "
        "theirs in cases/benchmarks, or a folder of such files",
    ),
    "num-requests": ("N", "number of requests, instead of the workload's own"),
    "prompt-len": ("LO:HI", "prompt lengths in tokens, uniform; N: all are N"),
    "cap": ("LO:HI", "max_new_tokens, uniform; N: all are N"),
    "slots": ("N", "sequences in flight at once (max_num_seqs)"),
    "seed": ("N", "seed of prompts and caps"),
    "shape": (
        "SHAPE",
        f"model by shape, with random weights, repeatable: {', '.join(SHAPES)} (default: "
        f"{DEFAULT_SHAPE['cpu']}, on a GPU {DEFAULT_SHAPE['cuda']}); or give --model",
    ),
    "laps": ("N", f"timed rounds of each engine (default: {DEFAULT_LAPS})"),
    "verify": (
        "all|N",
        "requests of each round whose tokens are checked (default: all if they are few, else a sample "
        "of 16); ids, lengths and finish reasons always are",
    ),
    "memory": ("", "measure the peak memory of each engine, in a round of a process of its own"),
    "threads": ("N", "threads that each engine may compute with on a CPU (default: 1)"),
    "results": ("FILE", "where to write the result file (default: a new one in results/benchmarks/)"),
}
OPTIONS = tuple(_HELP)


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("batchproof-benchmarks", "Batchproof: benchmarks, with --benchmark-only")
    for name, (metavar, text) in _HELP.items():
        flag = f"--{name}"
        more: dict[str, Any] = {"metavar": metavar}
        if metavar == "N":
            more["type"] = int
        if not metavar:
            more = {"action": BooleanOptionalAction, "default": None}
        if name in ("workload", "shape"):
            more["action"] = "append"
        group.addoption(flag, help=text, **more)


def require_none(config: pytest.Config) -> None:
    """Raises `UsageError` if one of these options is given to a run that is no benchmark."""
    given = [f"--{name}" for name in OPTIONS if config.getoption(f"--{name}") is not None]
    if given:
        raise UsageError(f"{given[0]} belongs to benchmarks: add --benchmark-only, or leave it out")
