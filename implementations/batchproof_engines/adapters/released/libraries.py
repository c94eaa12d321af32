"""The released libraries: a folder each, and the environment that it is installed in."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from batchproof.places import ENVIRONMENTS
from batchproof.records.decode import decode
from batchproof.validation.values import one_of, require
from batchproof_engines.adapters.released.builds import SourceBuild, build

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of a server that is part of its command line: a whole number, or one of some names."""

    default: int | None = None
    least: int = 1
    choices: Mapping[str, str] = field(default_factory=dict)  # with what is filled in; the first is
    # the default

    def filled(self, name: str, value: object = None) -> str:
        """Returns what is filled in for a value, or for the default. Raises `UsageError`."""
        if value is None:
            value = next(iter(self.choices), self.default)
        if self.choices:
            return self.choices[one_of(name, _text(value), self.choices)]
        is_fitting = type(value) is int and value >= self.least
        require(is_fitting, name, repr(value), f"a whole number, at least {self.least}")
        return str(value)


def _text(value: object) -> str:
    """Returns an option as it is written: `on` and `off` may have been read as truth values."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Conversion:
    """How a checkpoint is converted for a server, in the library's environment.

    A command that fails says with its last line why the library cannot have the model.
    """

    command: tuple[str, ...]  # {python}, {home}, {built}, {folder}, {model} and flags are filled in
    model: str  # the name of what it makes beside the checkpoint; flags are filled in


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How the library is started as a server, and how it is asked."""

    # {folder}, {model}, {built}, {port}, {dtype} and the names of flags are filled in
    command: tuple[str, ...]
    client: Mapping[str, str | bool]  # options of `openai`, some of which a user may set
    flags: Mapping[str, Flag]
    ready: str = ""  # the path that is answered with success once it can serve; "": any answer will do
    ready_s: float = 90.0  # for which that is waited
    variables: Mapping[str, str] = field(default_factory=dict)  # of its environment
    # What is counted -> words in the output, a regular expression.
    events: Mapping[str, str] = field(default_factory=dict)
    # What is counted again for each engine -> words in the output of its server until it could serve.
    started: Mapping[str, str] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()  # words in the output of one that ends because of its model
    conversion: Conversion | None = None
    # Option -> its value -> options of `openai` that are others with it.
    client_with: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReleasedLibrary:
    """A library, as its folder describes it."""

    folder: Path
    title: str  # as its maker writes it
    options: Mapping[str, str] = field(default_factory=dict)  # with what they mean
    notes: tuple[str, ...] = ()  # what its verdict says of it, before what depends on options
    environment: str = ""  # the library in whose environment it is, if not in one of its own
    package: str = ""  # whose version is that of a server, unless it is compiled
    unwanted: tuple[str, ...] = ()  # dependencies that cannot be imported
    # Of releases that want other versions beside them than are pinned: release -> package -> version.
    beside: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    build: SourceBuild | None = None
    server: ServerCommand | None = None
    # Of a matrix: axis -> value, the base first -> options that it sets; `met`, which counters prove
    # it; `beside`, the values that other axes have then.
    axes: Mapping[str, Mapping[str, Mapping[str, str | tuple[str, ...] | Mapping[str, str]]]] = field(
        default_factory=dict
    )

    @property
    def program(self) -> Path | None:
        """The script that answers the pipe; None for a server."""
        return None if self.server else self.folder / "program.py"

    @property
    def requirements(self) -> Path:
        return HERE / (self.environment or self.folder.name) / "requirements.txt"

    def is_pinned(self, release: str | None) -> bool:
        """Returns whether a release of the library is the one that its folder names."""
        return release is None or release == self._pin()[1]

    def build_of(self, release: str | None) -> SourceBuild | None:
        return self.build if self.is_pinned(release) else self.build and self.build.of(str(release))

    def name_of(self, release: str | None) -> str:
        """Returns the name of a release of the library as its source archive has it."""
        package, pinned = self._pin()
        return f"{package}-{release or pinned}"

    def requirements_of(self, release: str | None) -> str:
        """Returns the requirements with a release of the library, and what it wants beside it."""
        text, (name, pinned) = self.requirements.read_text(encoding="utf-8"), self._pin()
        release = release or pinned
        for package, version in {name: release, **self.beside.get(release, {})}.items():
            pin = rf"(?m)^({re.escape(package)}(?:\[\w+\])?)==\S+"
            text = re.sub(pin, rf"\1=={version}", text)
        return text

    def _pin(self) -> tuple[str, str]:
        """Returns name and version of the library: those of the source that is compiled, or else of the
        requirement that names the package, or else of the first."""
        if self.build is not None:
            name, _, version = self.build.source.partition("==")
            return name, version
        text = self.requirements.read_text(encoding="utf-8")
        pins: list[tuple[str, str]] = re.findall(r"(?m)^([\w.-]+)(?:\[\w+\])?==(\S+)", text)
        return next((pin for pin in pins if pin[0] == self.package), pins[0])


def _library(file: Path) -> ReleasedLibrary:
    values = tomllib.loads(file.read_text(encoding="utf-8"))
    return decode(ReleasedLibrary, {"folder": str(file.parent), **values})


LIBRARIES = {path.parent.name: _library(path) for path in sorted(HERE.glob("*/engine.toml"))}


def interpreter(name: str, release: str | None = None) -> str | None:
    """Returns the Python that has the library, or None if its installation is missing or incomplete.
    `release`: another than the one that is pinned."""
    folder, built = _environment(name, release), LIBRARIES[name].build_of(release)
    is_whole = _done(folder).exists() and (built is None or built.folder.is_dir())
    return str(_python(folder)) if is_whole else None


def _environment(name: str, release: str | None) -> Path:
    library = LIBRARIES[name]
    place = library.environment or name
    is_other = library.build is None and not library.is_pinned(release)
    return ENVIRONMENTS / (f"{place}-{release}" if is_other else place)


def install(name: str, release: str | None = None) -> Path:
    """Creates an environment with exactly the pinned requirements, or with another release of the
    library beside them, and returns its folder; one that has them already is left as it is. What is
    compiled is built afterwards, and its releases share an environment.

    Raises `CalledProcessError` if pip fails, and `UsageError` if a build does; the output of both is on
    the screen.
    """
    library, folder = LIBRARIES[name], _environment(name, release)
    text = library.requirements_of(release)
    if not _done(folder).exists() or _done(folder).read_text(encoding="utf-8") != text:
        _done(folder).unlink(missing_ok=True)
        _fill(folder, text, LIBRARIES[library.environment or name].unwanted)
    wanted = library.build_of(release)
    if wanted is not None:
        build(wanted, str(_python(folder)))
    _done(folder).write_text(text, encoding="utf-8")
    return folder


def _fill(folder: Path, requirements: str, unwanted: Sequence[str]) -> None:
    """Creates an environment with these requirements, less what cannot be imported."""
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(_python(folder)), "-m", "pip"]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "requirements.txt")
        path.write_text(requirements, encoding="utf-8")
        subprocess.run([*pip, "install", "--quiet", "-r", str(path)], check=True)
    if unwanted:
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *unwanted], check=True)


def _python(folder: Path) -> Path:
    is_windows = sys.platform == "win32"
    return folder / ("Scripts/python.exe" if is_windows else "bin/python")


def _done(folder: Path) -> Path:
    """Returns the file that is written last, with the requirements that were installed: without it, the
    installation was interrupted."""
    return folder / ".complete"
