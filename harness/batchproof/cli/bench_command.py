"""`batchproof bench ENGINE...`: the benchmarks on engines, in any folder."""

from __future__ import annotations

import argparse

from batchproof.cli.pytest_process import add_engines, run_pytest
from batchproof.places import BENCHMARKS

# As pytest has them (`batchproof.plugin.bench_options`), which would have to import torch to say so.
OPTIONS = """
benchmark options (`batchproof bench paged --help` has all of pytest):
  --workload NAME       a workload, repeatable (default: all)
  --num-requests N      number of requests, instead of the workload's own
  --prompt-len LO:HI    prompt lengths in tokens
  --cap LO:HI           max_new_tokens
  --slots N             sequences in flight at once
  --seed N              seed of prompts, caps and arrivals
  --shape SHAPE         a model by shape, with random weights, repeatable
  --laps N              timed rounds of each engine
  --verify all|N        requests of each round whose tokens are checked
  --goodput KEY:MS      latency limits that a good request meets
  --load LOADS          latency at rising load: rate:R,..., concurrency:N,... or auto
  --burstiness B        shape of the gaps between requests under --load (1: Poisson)
  --growth-for S        seconds to measure each axis of cost growth
  --threads N           threads of torch on a CPU
  --results FILE        where to write the result file
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `batchproof bench`."""
    add_engines(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = OPTIONS


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every engine has valid figures, else 1. The figures are in the result file that
    the output names.
    """
    # pytest would rewrite the assertions of installed engines, which then take longer.
    options = ["--benchmark-only", "--assert=plain", "--benchmark-storage=file://results/benchmarks"]
    return run_pytest(BENCHMARKS, arguments.arguments, options)
