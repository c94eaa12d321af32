"""`batchproof test ENGINE...`: the conformance suite on engines, in any folder."""

import argparse

from batchproof.cli.pytest_process import add_engines, run_pytest
from batchproof.places import SUITE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engines(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every engine keeps the promises that it was tested on, else 1."""
    # pytest-benchmark makes its storage folder in every run: here it is one that exists.
    return run_pytest(SUITE, arguments.arguments, ["--benchmark-storage=file://."])
