"""Compiles a C++ file for the machine that runs it, once.

What is compiled is kept in `batchproof/native/` of the user's cache folder (`XDG_CACHE_HOME`, else
`~/.cache`), or, if that cannot be written, in a folder of the user's own among the temporary ones: its
files are executed. A file's name holds all that it was made of, and beside it is a digest of its
content, so everything there may be damaged or deleted, and is made anew.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from batchproof.places import user_cache

COMPILERS = ("c++", "g++", "clang++")
ASKING, BUILDING = 10.0, 120.0  # seconds that a compiler may take


class NotBuiltError(RuntimeError):
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
    """Returns the library made of `source`; processes that ask at once wait for the one that makes it.

    `wanted`: flags that are left out if the compiler does not know them. Raises `NotBuiltError`.
    """
    words = compiler()
    if not words:
        raise NotBuiltError(f"there is no C++ compiler: neither CXX nor {', '.join(COMPILERS)}")
    version = _run([*words, "--version"], ASKING)
    facts = (source.read_text(encoding="utf-8"), *words, *flags, *wanted, version, *_machine())
    name = f"{source.stem}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"
    try:
        library = _folder() / f"{name}.so"
        with _lock(library.with_suffix(".lock")):
            if not _is_whole(library):
                _build([*words, str(source), *flags], list(wanted), library)
    except OSError as error:
        raise NotBuiltError(f"what is compiled cannot be kept: {error}") from error
    return library


def _build(command: list[str], wanted: list[str], library: Path) -> None:
    """Builds under a name of its own, so that an interrupted build leaves no library."""
    unfinished = library.with_suffix(f".{os.getpid()}")
    command = [*command, "-o", str(unfinished)]
    try:
        _run([*command, *wanted], BUILDING)
    except NotBuiltError:
        if not wanted:
            raise
        _run(command, BUILDING)
    if not unfinished.exists():
        raise NotBuiltError(f"the compiler {command[0]!r} makes no file")
    library.with_suffix(".sha256").write_text(_digest(unfinished), encoding="utf-8")
    unfinished.replace(library)


def _is_whole(library: Path) -> bool:
    with suppress(OSError, UnicodeDecodeError):
        return library.with_suffix(".sha256").read_text(encoding="utf-8") == _digest(library)
    return False


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _run(command: list[str], limit: float) -> str:
    nothing = subprocess.DEVNULL
    try:
        ended = subprocess.run(command, stdin=nothing, capture_output=True, timeout=limit, check=False)
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


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    """A context that one process is in at a time, where the system has such locks."""
    with file.open("w") as lock:
        with suppress(ImportError, OSError):
            import fcntl  # noqa: PLC0415 - not on every system

            fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed, even by a crash
        yield


def _folder() -> Path:
    """Returns the folder for what is compiled. Raises `NotBuiltError` and `OSError`."""
    with suppress(OSError, RuntimeError):  # it cannot be made; there is no home
        folder = user_cache() / "native"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    if not hasattr(os, "getuid"):
        raise NotBuiltError("the user's cache folder cannot be written")
    folder = Path(tempfile.gettempdir()) / f"batchproof-native-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise NotBuiltError(f"{folder} belongs to another user")
    return folder
