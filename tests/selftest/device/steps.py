"""What the `paged` engine launches on CUDA and costs the host, measured without a GPU.

    python -m tests.selftest.device.steps [SHAPE ...] [--layers N] [--json FILE]

Kernels are counted on fake tensors: build and steps run as they would on an H200, through graphs and
compilers, and nothing is computed. An operator that is no view counts as one kernel, whatever it
launches below. With Triton the backend is `triton`, else `blocks`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import torch

from batchproof.models.shapes import SHAPES
from batchproof.records.provenance import command_line, provenance
from tests.selftest.device.fake.dry_run import dry_run
from tests.selftest.device.fake.host import PROMPT_LEN, eager_time, host_time
from tests.selftest.device.fake.report import problem_lines, record_of, text_of

COUNTED = ("llama-1b", "llama-8b", "qwen3-0.6b", "gpt2")
BACKENDS = ("triton", "blocks")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.selftest.device.steps", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--backend", choices=BACKENDS, default=BACKENDS[find_spec("triton") is None])
    parser.add_argument("--layers", type=int, help="of each model, instead of all")
    parser.add_argument("--no-host", action="store_true", help="count, and measure no time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write it there as well")
    asked = parser.parse_args(arguments)
    for shape in asked.shapes:
        if shape not in SHAPES:
            parser.error(f"{shape!r} is no shape; there are {', '.join(SHAPES)}")
    if asked.layers is not None and asked.layers < 1:
        parser.error(f"--layers is {asked.layers}, but must be at least 1")
    if asked.backend == "triton" and find_spec("triton") is None:
        parser.error("--backend triton needs Triton, which is not installed; choose blocks")
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET is 1, but the kernels of a GPU are counted: unset it")
    if asked.json and not asked.json.parent.is_dir():
        parser.error(f"--json {asked.json}: there is no folder {asked.json.parent}")
    shapes = asked.shapes or COUNTED
    torch.set_num_threads(1)
    host_times = [] if asked.no_host else [host_time(num_rows) for num_rows in PROMPT_LEN]
    eager_times = [] if asked.no_host else [eager_time(shape) for shape in shapes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of compilers, about a device that does not exist
        reports = [dry_run(shape, asked.backend, asked.layers) for shape in shapes]
    print(text_of(reports, host_times, eager_times))
    if asked.json:
        record = {
            "made": provenance(command_line("python", "-m", "tests.selftest.device.steps")),
            "kernels": [record_of(each) for each in reports],
            "host_times": [asdict(each) for each in host_times],
            "eager_times": [asdict(each) for each in eager_times],
        }
        asked.json.write_text(json.dumps(record, indent=1) + "\n")
    if any(problem_lines(each) for each in reports):
        sys.exit(1)


if __name__ == "__main__":
    main()
