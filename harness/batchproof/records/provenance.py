"""Where a result comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Only what a speed depends on, never a name."""

    cpu: str
    cores: int  # that the process may use


@dataclass(frozen=True)
class Provenance:
    """How, when and on what a result was made; `versions`: of packages, Python included."""

    machine: Machine
    versions: Mapping[str, str]
    command: str = ""
    date: str = "undated"
    commit: str = "unknown"

    def lines(self) -> list[str]:
        """A list in Markdown."""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return [
            f"* made by `{self.command}` on {self.date}",
            f"* machine: {self.machine.cores} cores of {self.machine.cpu}",
            f"* versions: {versions}",
            f"* commit: {self.commit}",
        ]
