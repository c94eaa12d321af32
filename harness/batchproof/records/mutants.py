"""Mutants of engines, and what the suite said of each."""

from __future__ import annotations

from dataclasses import dataclass

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance


@dataclass(frozen=True)
class MutantRecord:
    """One mutant. `outcome` is `waiting`, `killed`, `hung`, `died` or `survived`; `seconds` are those
    that it took."""

    name: str
    path: str
    line: int
    before: str
    after: str
    outcome: str = "waiting"
    killed_by: str | None = None
    promise: str | None = None
    report: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class MutantsRecord:
    """The mutants of the engines of one run. `models`: those of `--model`, if any. `num_passed` are
    the tests that each unchanged engine passes, `num_points` all mutants that the sources have."""

    made: Provenance
    engines: tuple[str, ...]
    sources: tuple[str, ...]
    seed: int
    num_passed: tuple[int, ...]
    num_points: int
    num_unreached: int
    mutants: tuple[MutantRecord, ...]
    models: tuple[str, ...] = ()


MUTANTS = FileKind("table of mutants", "batchproof.mutants", 2, MutantsRecord)
