"""Where a result comes from, as a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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

    `sittings`: a line for each of the processes whose work it adds up, if there were several.
    """

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
