"""`python -m batchproof install ENGINE...`: installs released engines, each into an environment of
its own.
"""

from __future__ import annotations

import argparse
import subprocess

from batchproof.errors import UsageError
from batchproof.run.registry import engines_module

RELEASED = "adapters.released.libraries"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `batchproof install`."""
    names = ", ".join(engines_module(RELEASED).LIBRARIES)
    parser.add_argument("engines", nargs="+", metavar="ENGINE", help=names)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 once all are installed. The environments are in `.engines/` and may be deleted at any
    time. Raises `UsageError`.
    """
    libraries = engines_module(RELEASED)
    unknown = [name for name in arguments.engines if name not in libraries.LIBRARIES]
    if unknown:
        raise UsageError(f"ENGINE {unknown[0]!r} cannot be installed: {', '.join(libraries.LIBRARIES)}")
    for name in arguments.engines:
        library = libraries.LIBRARIES[name]
        print(f"{name}: {library.title}, pinned in {library.requirements} ...")
        try:
            print(f"{name}: installed in {libraries.install(name)}")
        except (subprocess.CalledProcessError, OSError) as error:
            raise UsageError(f"{name!r} could not be installed: {error}") from error
    return 0
