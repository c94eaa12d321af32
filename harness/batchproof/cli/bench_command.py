"""`batchproof bench ENGINE...`: the benchmarks on engines, in any folder."""

import argparse

from batchproof.cli.pytest_process import add_engines, run_pytest
from batchproof.errors import UsageError
from batchproof.places import BENCHMARKS, CASES

# What people would use instead of `paged`, and what it is measured against. By default OpenVINO keeps
# no max_num_seqs, so where requests queue only its other mode answers the same question. vLLM
# plans ahead by default, and its pool holds what the largest workload needs.
RELEASED = (
    *("paged", "openvino", "openvino?dynamic_split_fuse=false"),
    *("vllm?async_scheduling=true&kv_cache_mib=2048", "llama-server", "mlx"),
    *("mistralrs", "ctranslate2", "onnxruntime", "transformers-cb"),
    *("ragged", "static", "reference"),
)
FLAG = "--released"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engines(parser)
    parser.add_argument(
        FLAG,
        nargs=argparse.REMAINDER,
        metavar="PYTEST OPTION",
        help=f"instead of engines: {', '.join(RELEASED)}, on the workloads of "
        "cases/benchmarks/queue; what is not installed is left out by name",
    )
    parser.epilog = "`batchproof bench paged --help` lists the options, among those of pytest."


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every engine has valid figures, else 1. The output names the result file."""
    # pytest would rewrite the assertions of installed engines, which then take longer.
    options = ["--benchmark-only", "--assert=plain", "--benchmark-storage=file://results/benchmarks"]
    asked = [*arguments.arguments, *(arguments.released or ())]
    if arguments.released is not None or FLAG in asked:  # which may stand behind an option of pytest
        asked = [each for each in asked if each != FLAG]
        if asked and not asked[0].startswith("-"):
            raise UsageError(f"{FLAG} is instead of engines, but {asked[0]!r} is named as well")
        asked = [*RELEASED, *asked]
        if not any(each.startswith("--workload") for each in asked):
            options.append(f"--workload={CASES / 'benchmarks' / 'queue'}")
    return run_pytest(BENCHMARKS, asked, options)
