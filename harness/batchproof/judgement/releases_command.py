"""`batchproof judge releases ENGINE VERSION...`: which release broke or mended which requirement."""

import argparse

from batchproof.errors import UsageError
from batchproof.judgement import matrix_command
from batchproof.judgement.matrix_command import RELEASE
from batchproof.judgement.possible import require_options
from batchproof.run.registry import engines_module


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", metavar="ENGINE", help="a released engine, with its options")
    parser.add_argument(
        "versions", nargs="+", metavar="VERSION", help="the oldest first; each is installed"
    )
    parser.add_argument(
        "--bisect",
        action="store_true",
        help="judge the first and the last in full, and ask by halving where it changed between them",
    )
    matrix_command.add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if no requirement breaks in any release, else 1. Raises `UsageError`."""
    libraries = engines_module(matrix_command.LIBRARIES)
    name = arguments.engine.partition("?")[0]
    if name not in libraries.LIBRARIES:
        known = ", ".join(libraries.LIBRARIES)
        raise UsageError(f"ENGINE {name!r} has no releases here; these have: {known}")
    if len(arguments.versions) < 2 or len({*arguments.versions}) < len(arguments.versions):
        raise UsageError("VERSION: give two or more different ones, the oldest first")
    axes = {RELEASE: {version: {RELEASE: version} for version in arguments.versions}}
    require_options(arguments, axes)
    missing = [each for each in arguments.versions if libraries.interpreter(name, each) is None]
    if missing:
        wanted_ones = " ".join(f"{name}=={each}" for each in missing)
        raise UsageError(f"{', '.join(missing)} not installed: `batchproof install {wanted_ones}`")
    wanted = [{RELEASE: version} for version in arguments.versions]
    title = f"{arguments.engine} releases"
    return matrix_command.judge_matrix(arguments, axes, wanted, title, True, arguments.bisect)
