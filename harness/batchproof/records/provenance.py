"""Where a result comes from: date, command, machine, versions, commit."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import batchproof
from batchproof.places import CHECKOUT

# For the pytest that a command starts: what was typed, and the file to touch when all tests have
# ended.
TYPED = "BATCHPROOF_COMMAND"
ENDED = "BATCHPROOF_ENDED"
PACKAGES = ("torch", "transformers", "hypothesis", "pytest")


@dataclass(frozen=True)
class Machine:
    """The facts of a machine that a speed depends on, never its name."""

    cpu: str
    cores: int  # that the process may use

    def __str__(self) -> str:
        return f"{self.cores} core{'' if self.cores == 1 else 's'} of {self.cpu}"


@dataclass(frozen=True)
class Provenance:
    """How, when and on what a result was made. `versions` are those of packages and of Python.
    `sittings`: a line for each of the processes whose work it adds up, if there were several."""

    machine: Machine
    versions: Mapping[str, str]
    command: str = ""
    date: str = "undated"
    commit: str = "unknown"
    sittings: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Returns a list in Markdown."""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return [
            f"* made by `{self.command}` on {self.date}",
            f"* machine: {self.machine}",
            f"* versions: {versions}",
            f"* commit: {self.commit}",
            *(f"* work of {each}" for each in self.sittings),
        ]


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def command_line(*start: str) -> str:
    """Returns what was typed. `start` replaces the program, whose path exists on this machine alone."""
    return shlex.join([*start, *sys.argv[1:]])


def pytest_line(arguments: Iterable[object]) -> str:
    """Returns what was typed to run pytest: the command that started it, if one did."""
    return os.environ.get(TYPED) or shlex.join(["pytest", *map(str, arguments)])


def made_now(command: str | None = None) -> Provenance:
    """Returns the provenance of a result that this process makes. `command` is what repeats it."""
    return Provenance(
        machine=Machine(cpu_name(), num_cores()),
        versions=versions(),
        command=command or command_line("python", "-m", "batchproof"),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=_commit(),
    )


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the libraries that answers and searches depend on."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _commit() -> str:
    """Returns the checkout's commit, with a note if files outside `results/` differ from it. An
    installed package has none and returns its release."""
    if CHECKOUT is None:
        return f"none, release {batchproof.__version__}"
    commit = _git(CHECKOUT, "rev-parse", "--short=12", "HEAD")
    if not commit:
        return "unknown"
    is_dirty = _git(CHECKOUT, "status", "--porcelain", "--", ".", ":!results")
    return f"{commit} with uncommitted changes" if is_dirty else commit


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""
