"""`batchproof judge releases ENGINE VERSION...`: which release broke or mended which requirement."""

import argparse

from batchproof.errors import UsageError
from batchproof.judgement.axes import Value
from batchproof.judgement.matrix_command import Matrix, add_common
from batchproof.judgement.possible import require_options
from batchproof.run.registry import engines_module

LIBRARIES = "adapters.released.libraries"
RELEASE = "release"  # the axis


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
    add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if no requirement breaks in any release, else 1. Raises `UsageError`."""
    libraries = engines_module(LIBRARIES)
    name = arguments.engine.partition("?")[0]
    if name not in libraries.LIBRARIES:
        known = ", ".join(libraries.LIBRARIES)
        raise UsageError(f"ENGINE {name!r} has no releases here; these have: {known}")
    if len(arguments.versions) < 2 or len({*arguments.versions}) < len(arguments.versions):
        raise UsageError("VERSION: give two or more different ones, the oldest first")
    axes = {RELEASE: {each: Value({RELEASE: each}) for each in arguments.versions}}
    require_options(arguments, axes)
    missing = [each for each in arguments.versions if libraries.interpreter(name, each) is None]
    if missing:
        wanted_ones = " ".join(f"{name}=={each}" for each in missing)
        raise UsageError(f"{', '.join(missing)} not installed: `batchproof install {wanted_ones}`")
    wanted = [{RELEASE: each} for each in arguments.versions]
    if arguments.bisect:
        wanted = [wanted[0], wanted[-1]]
    return Matrix(arguments, axes, is_ordered=True).judge(wanted)
