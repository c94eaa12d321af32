"""What is compiled from a library's source, once, and kept in the user's cache for all checkouts.

The source is an archive of the package index, the tools are those of the library's environment and the
machine's C++ compiler. What is kept is named after the source and the digest of the whole description,
so other commands build anew; a folder of the cache may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.places import user_cache
from batchproof.records.provenance import num_cores
from batchproof_engines.adapters.released.serving import made_once

COMPILERS = ("c++", "g++", "clang++")
NUM_DIGITS = 12  # of a digest


@dataclass(frozen=True, slots=True)
class SourceBuild:
    """A source archive and the commands that compile it."""

    source: str  # NAME==VERSION
    commands: tuple[tuple[str, ...], ...]  # run in an empty folder; {source}, {jobs} are filled in
    kept: tuple[str, ...]  # paths in that folder that are needed later, as far as a release has them;
    # the source is in `source`

    def of(self, release: str) -> SourceBuild:
        """Returns the same build of another release."""
        return replace(self, source=f"{self.source.partition('==')[0]}=={release}")

    @property
    def folder(self) -> Path:
        """Where the kept paths are, once they are built."""
        digest = hashlib.sha256(repr(astuple(self)).encode()).hexdigest()[:NUM_DIGITS]
        return user_cache() / "builds" / f"{self.source.replace('==', '-')}-{digest}"


def build(wanted: SourceBuild, python: str) -> None:
    """Builds what is not in the cache yet, with the tools beside `python`; the output is on the screen.

    Raises `UsageError` if there is no compiler or a command fails.
    """
    if wanted.folder.is_dir():
        return
    if not (os.environ.get("CXX") or any(map(shutil.which, COMPILERS))):
        raise UsageError(
            f"{wanted.source} is compiled, which needs a C++ compiler: none of {', '.join(COMPILERS)} "
            f"is on the PATH, and CXX is not set"
        )

    def make(made: Path) -> None:
        work = made.with_name("work")
        source = work / "source"
        _unpack(_fetched(wanted.source, python, made.with_name("archive")), source)
        for command in wanted.commands:
            _run([each.format(source=source, jobs=num_cores()) for each in command], python, work)
        for path in (each for each in wanted.kept if (work / each).exists()):
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            os.rename(work / path, made / path)

    wanted.folder.parent.mkdir(parents=True, exist_ok=True)
    made_once(wanted.folder, make)


def _fetched(source: str, python: str, folder: Path) -> Path:
    choice = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder))
    _run([python, "-m", "pip", "download", "--quiet", *choice, source], python, folder.parent)
    (archive,) = folder.iterdir()
    return archive


def _unpack(archive: Path, target: Path) -> None:
    target.parent.mkdir()
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        shutil.unpack_archive(archive, scratch, filter="data")
        (top,) = Path(scratch).iterdir()
        os.rename(top, target)


def _run(command: Sequence[str], python: str, folder: Path) -> None:
    """Runs a command, whose output is on the screen. Raises `UsageError` if it fails."""
    path = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", "")])
    env = {**os.environ, "PATH": path}
    ran = subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, check=False)
    if ran.returncode != 0:
        raise UsageError(f"`{' '.join(command)}` ended with status {ran.returncode}; see its output")
