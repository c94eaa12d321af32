"""Compiles a C++ file for the machine that runs it, once.

What is compiled is kept in `batchproof/native/` of the user's cache folder (`XDG_CACHE_HOME`, else
`~/.cache`), or, if that cannot be written, in a folder of the user's own among the temporary ones: its
files are executed. Its name holds all that it was made of, so nothing there is ever wrong, and
everything may be deleted.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from batchproof.places import user_cache

COMPILERS = ("c++", "g++", "clang++")
LIMIT = 600.0  # seconds


class NotBuiltError(RuntimeError):
    """The library cannot be built: there is no compiler, or it rejects the file."""


def compiler() -> list[str]:
    """Returns the words that call the C++ compiler: of `CXX`, else the first of `COMPILERS` on the
    path; none if there is none."""
    given = shlex.split(os.environ.get("CXX", ""))
    return given or [each for each in COMPILERS if shutil.which(each)][:1]


def built(source: Path, flags: Sequence[str], wanted: Sequence[str] = ()) -> Path:
    """Returns the library made of `source`; processes that ask at once wait for the one that makes it.

    `wanted`: flags that are left out if the compiler does not know them. Raises `NotBuiltError`.
    """
    words = compiler()
    if not words:
        raise NotBuiltError(f"there is no C++ compiler: neither CXX nor {', '.join(COMPILERS)}")
    version = _run([*words, "--version"])
    machine = platform.node(), torch.backends.cpu.get_cpu_capability(), torch.__version__
    facts = (source.read_text(encoding="utf-8"), *words, *flags, *wanted, version, *machine)
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()
    library = _folder() / f"{source.stem}-{digest[:16]}.so"
    with library.with_suffix(".lock").open("w") as lock:
        _wait_for(lock.fileno())
        if not library.exists():
            unfinished = library.with_suffix(".unfinished")  # an interrupted build leaves no library
            command = [*words, str(source), "-o", str(unfinished), *flags]
            try:
                _run([*command, *wanted])
            except NotBuiltError:
                if not wanted:
                    raise
                _run(command)
            unfinished.replace(library)
    return library


def _run(command: list[str]) -> str:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuiltError(f"the compiler {command[0]!r} does not run: {error}") from error
    if ended.returncode:
        said = "\n".join(ended.stderr.strip().splitlines()[-20:])
        raise NotBuiltError(f"the compiler {command[0]!r} fails: {said}")
    return ended.stdout


def _wait_for(lock: int) -> None:
    """Locks the file until it is closed, even by a crash."""
    try:
        import fcntl  # noqa: PLC0415 - not on every system
    except ImportError as error:
        raise NotBuiltError(f"not on this system: {error}") from error
    fcntl.flock(lock, fcntl.LOCK_EX)


def _folder() -> Path:
    try:
        folder = user_cache() / "native"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # it cannot be made; there is no home
        pass
    folder = Path(tempfile.gettempdir()) / f"batchproof-native-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise NotBuiltError(f"{folder} belongs to another user")
    return folder
