"""Builds a C++ file as a library that torch loads: `torch.ops.load_library(built(source))`.

Built with the headers of the installed torch and nothing of Python's, so the file says what it offers
in `TORCH_LIBRARY` or as `extern "C"`; pybind's headers alone would take longer than the rest.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

COMPILERS = ("c++", "g++", "clang++")
# The headers of torch 2.13 ask for C++20. -O1 compiles as fast as -O0, and runs three times as fast.
FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC", "-shared")
LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch")
TORCH = Path(torch.__file__).parent


class NotBuiltError(RuntimeError):
    """The library cannot be built: there is no compiler, or it rejects the file."""


def compiler() -> str | None:
    """Returns the C++ compiler: `$CXX`, else the first of `COMPILERS` on the path, else None."""
    named = os.environ.get("CXX")
    return next(filter(None, map(shutil.which, [named] if named else COMPILERS)), None)


def built(source: Path) -> Path:
    """Returns the library built from `source`, compiled once per content, torch, compiler and flags.

    Concurrent test workers wait for the one that builds. Raises `NotBuiltError`.
    """
    tool = compiler()
    if tool is None:
        raise NotBuiltError(f"no C++ compiler: neither $CXX nor {', '.join(COMPILERS)} was found")
    key = hashlib.sha256(source.read_bytes())
    key.update(repr((tool, FLAGS, LIBRARIES, TORCH, torch.__version__)).encode())
    library = _folder() / f"{source.stem}-{key.hexdigest()[:16]}.so"
    with library.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, even by a crash
        if not library.exists():
            _compile([tool, *FLAGS, *_include_flags(), str(source), *_link_flags()], library)
    return library


def _compile(command: list[str], library: Path) -> None:
    """Builds under a temporary name, so that an interrupted build leaves no broken library."""
    unfinished = library.with_suffix(".unfinished")
    done = subprocess.run(
        [*command, "-o", str(unfinished)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotBuiltError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    unfinished.rename(library)


def _include_flags() -> list[str]:
    headers = TORCH / "include"
    return [f"-I{headers}", f"-I{headers / 'torch' / 'csrc' / 'api' / 'include'}"]


def _link_flags() -> list[str]:
    libraries = TORCH / "lib"
    return [f"-L{libraries}", *LIBRARIES, f"-Wl,-rpath,{libraries}"]


def _folder() -> Path:
    """Returns a folder that persists between runs and belongs to this user: its files are executed."""
    folder = Path(tempfile.gettempdir()) / f"batchproof-native-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise NotBuiltError(f"{folder} belongs to another user")
    return folder
