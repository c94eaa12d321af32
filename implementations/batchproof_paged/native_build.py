"""Compiles a C++ file for the machine that runs it, once.

What is compiled is kept in `batchproof/native/` of the user's cache folder (`XDG_CACHE_HOME`, else
`~/.cache`), under a name that holds all it was made of; a file that is deleted is compiled again.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from batchproof.places import user_cache

COMPILERS = ("c++", "g++", "clang++")
ASKING_S, BUILDING_S = 10.0, 120.0  # that a compiler may take


class NotBuiltError(Exception):
    """The library cannot be built: there is no compiler, or it rejects the file."""


def compiler() -> list[str]:
    """Returns the words that call the C++ compiler: of `CXX`, else the first of `COMPILERS` on the
    path; none if there is none. Raises `NotBuiltError` for a `CXX` that is no words."""
    given = os.environ.get("CXX", "")
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise NotBuiltError(f"CXX is {given!r}: {error}") from error
    return words or [each for each in COMPILERS if shutil.which(each)][:1]


def built(source: Path, flags: Sequence[str], wanted: Sequence[str] = ()) -> Path:
    """Returns the library made of `source`. Processes that ask at once each make it; the last stays.

    `wanted`: flags that are left out if the compiler does not know them. Raises `NotBuiltError`.
    """
    words = compiler()
    if not words:
        raise NotBuiltError(f"there is no C++ compiler: neither CXX nor {', '.join(COMPILERS)}")
    version = _run([*words, "--version"], ASKING_S)
    facts = (source.read_text(encoding="utf-8"), *words, *flags, *wanted, version, *_machine())
    name = f"{source.stem}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.so"
    try:
        folder = user_cache() / "native"
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists():
            _build([*words, str(source), *flags], wanted, folder / name)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        raise NotBuiltError(f"what is compiled cannot be kept: {error}") from error
    return folder / name


def _build(command: list[str], wanted: Sequence[str], library: Path) -> None:
    """Builds under a name of its own, so that an interrupted build leaves no library."""
    unfinished = library.with_suffix(f".{os.getpid()}")
    command = [*command, "-o", str(unfinished)]
    try:
        _run([*command, *wanted], BUILDING_S)
    except NotBuiltError:
        if not wanted:
            raise
        _run(command, BUILDING_S)
    if not unfinished.exists():
        raise NotBuiltError(f"the compiler {command[0]!r} makes no file")
    unfinished.replace(library)


def _run(command: list[str], limit_s: float) -> str:
    nothing = subprocess.DEVNULL
    try:
        ended = subprocess.run(
            command, stdin=nothing, capture_output=True, timeout=limit_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuiltError(f"the compiler {command[0]!r} does not run: {error}") from error
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").splitlines() or [f"status {ended.returncode}"]
        said = next((line for line in lines if "error" in line), lines[-1])
        raise NotBuiltError(f"the compiler {command[0]!r} fails: {said.strip()}")
    return ended.stdout.decode(errors="replace")


def _machine() -> Iterator[str]:
    """Yields what the compiler may make use of: it looks at the processor itself."""
    yield from (platform.node(), platform.processor(), torch.__version__)
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines():
            if line.startswith(("model name", "flags", "Features")):
                yield line
