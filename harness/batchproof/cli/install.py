"""`python -m batchproof install ENGINE...`: released engines, each into an environment of its own."""

from __future__ import annotations

import argparse
import subprocess

from batchproof.errors import UsageError
from batchproof.run.registry import released_engines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(released_engines().SHELF)
    parser.add_argument("engines", nargs="+", metavar="ENGINE", help=names)


def run(arguments: argparse.Namespace) -> int:
    """0 if all are there. The environments lie in `.engines/` and may be deleted at any time."""
    shelf = released_engines()
    unknown = [name for name in arguments.engines if name not in shelf.SHELF]
    if unknown:
        raise UsageError(f"ENGINE {unknown[0]!r} cannot be installed: {', '.join(shelf.SHELF)}")
    for name in arguments.engines:
        print(f"{name}: {shelf.SHELF[name].title}, pinned in {shelf.SHELF[name].requirements.name} ...")
        try:
            print(f"{name}: installed in {shelf.install(name)}")
        except (subprocess.CalledProcessError, OSError) as error:
            raise UsageError(f"{name!r} could not be installed: {error}") from error
    return 0
