"""`batchproof bench ENGINE...`: the benchmarks on engines, in any folder."""

from __future__ import annotations

import argparse

from batchproof.cli.pytest_process import add_engines, run_pytest
from batchproof.places import BENCHMARKS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `batchproof bench`."""
    add_engines(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every engine has valid figures, else 1. The figures are in the result file that
    the output names.
    """
    # pytest would rewrite the assertions of installed engines, which then take longer.
    options = ["--benchmark-only", "--assert=plain", "--benchmark-storage=file://results/benchmarks"]
    return run_pytest(BENCHMARKS, arguments.arguments, options)
