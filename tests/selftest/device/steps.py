"""What the `paged` engine launches on CUDA, counted without a GPU.

    python -m tests.selftest.device.steps [SHAPE ...] [--layers N]

Kernels are counted on fake tensors: build and steps run as they would on an H200, through graphs and
compilers, and nothing is computed. An operator that is no view counts as one kernel, whatever it
launches below. With Triton the backend is `triton`, else `blocks`.
"""

import argparse
import os
import sys
import warnings
from importlib.util import find_spec

from batchproof.models.shapes import SHAPES
from tests.selftest.device.fake.dry_run import dry_run
from tests.selftest.device.fake.ledger import problem_lines, text_of

COUNTED = ("llama-1b", "llama-8b", "qwen3-0.6b", "gpt2")
BACKENDS = ("triton", "blocks")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.selftest.device.steps", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--backend", choices=BACKENDS, default=BACKENDS[find_spec("triton") is None])
    parser.add_argument("--layers", type=int, help="of each model, instead of all")
    asked = parser.parse_args(arguments)
    for shape in asked.shapes:
        if shape not in SHAPES:
            parser.error(f"{shape!r} is no shape; there are {', '.join(SHAPES)}")
    if asked.backend == "triton" and find_spec("triton") is None:
        parser.error("--backend triton needs Triton, which is not installed; choose blocks")
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET is 1, but the kernels of a GPU are counted: unset it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of compilers, about a device that does not exist
        reports = [dry_run(shape, asked.backend, asked.layers) for shape in asked.shapes or COUNTED]
    print(text_of(reports))
    if any(problem_lines(each) for each in reports):
        sys.exit(1)


if __name__ == "__main__":
    main()
