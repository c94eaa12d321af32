"""`python -m batchproof install ENGINE...`: installs released engines, each into an environment of
its own."""

import argparse
import subprocess

from batchproof.errors import UsageError
from batchproof.run.registry import engines_module

RELEASED = "adapters.released.libraries"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(engines_module(RELEASED).LIBRARIES)
    parser.add_argument("engines", nargs="+", metavar="ENGINE[==VERSION]", help=names)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 once all are installed. The environments are in `.engines/` and may be deleted at any
    time. Raises `UsageError`."""
    libraries = engines_module(RELEASED)
    wanted = [each.partition("==")[::2] for each in arguments.engines]
    for given, (name, version) in zip(arguments.engines, wanted, strict=True):
        if name not in libraries.LIBRARIES:
            known = ", ".join(libraries.LIBRARIES)
            raise UsageError(f"ENGINE {name!r} cannot be installed; these can: {known}")
        if "==" in given and not version:
            raise UsageError(f"ENGINE {given!r}: VERSION is empty; write {name}==VERSION or {name}")
    for name, version in wanted:
        library = libraries.LIBRARIES[name]
        other = f" but for version {version}" if version else ""
        print(f"{name}: {library.title}, pinned in {library.requirements}{other} ...")
        try:
            print(f"{name}: installed in {libraries.install(name, version or None)}")
        except (subprocess.CalledProcessError, OSError) as error:
            raise UsageError(f"{name!r} could not be installed: {error}") from error
    return 0
