"""The released libraries: a folder each, and the environment that it is installed in.

`engine.toml` says what the library is called, its options and, if it is a server, how it is started;
`requirements.txt` pins what is installed; `program.py` answers the pipe, unless it is a server.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from batchproof.places import ENVIRONMENTS
from batchproof.records.decode import decode

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How the library is started as a server, and how it is asked."""

    command: tuple[str, ...]  # {folder}, {port} and the names of flags are filled in
    client: Mapping[str, str]  # options of `openai`, some of which a user may set
    flags: Mapping[str, int]  # with their defaults
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleasedLibrary:
    """A library, as its folder describes it."""

    folder: Path
    title: str  # as its maker writes it
    maker: str
    options: Mapping[str, str] = field(default_factory=dict)  # with what they mean
    package: str = ""  # whose version is that of a server
    unwanted: tuple[str, ...] = ()  # dependencies that cannot be imported
    server: ServerCommand | None = None

    @property
    def program(self) -> Path | None:
        """The script that answers the pipe; None for a server."""
        return None if self.server else self.folder / "program.py"

    @property
    def requirements(self) -> Path:
        """The pinned requirements."""
        return self.folder / "requirements.txt"


def _library(file: Path) -> ReleasedLibrary:
    values = tomllib.loads(file.read_text(encoding="utf-8"))
    return decode(ReleasedLibrary, {"folder": str(file.parent), **values})


LIBRARIES = {path.parent.name: _library(path) for path in sorted(HERE.glob("*/engine.toml"))}


def interpreter(name: str) -> str | None:
    """Returns the Python that has the library, or None if its installation is missing or incomplete."""
    folder = ENVIRONMENTS / name
    return str(_python(folder)) if _done(folder).exists() else None


def install(name: str) -> Path:
    """Creates a new environment with exactly the pinned requirements, and returns its folder.

    Raises `CalledProcessError` if pip fails; pip's output is on the screen.
    """
    folder = ENVIRONMENTS / name
    _done(folder).unlink(missing_ok=True)
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(_python(folder)), "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", "-r", str(LIBRARIES[name].requirements)], check=True)
    if LIBRARIES[name].unwanted:
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *LIBRARIES[name].unwanted], check=True)
    _done(folder).touch()
    return folder


def _python(folder: Path) -> Path:
    is_windows = sys.platform == "win32"
    return folder / ("Scripts/python.exe" if is_windows else "bin/python")


def _done(folder: Path) -> Path:
    """Returns the file that is written last: without it, the installation was interrupted."""
    return folder / ".complete"
