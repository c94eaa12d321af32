"""Mutants of engines, and what the suite said of each."""

from __future__ import annotations

from dataclasses import dataclass

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance


@dataclass(frozen=True)
class MutantRecord:
    """One mutant. `outcome` is `killed`, `hung`, `died`, `survived` or `unreached`.

    `unreached`: the suite never executes its line, so it was not run. `judgement` and `why` are a
    person's word on a survivor: `equivalent`, `speed`, `beyond` (no promise speaks of it) or `hole`.
    """

    name: str
    path: str
    line: int
    before: str
    after: str
    outcome: str
    killed_by: str | None = None
    promise: str | None = None
    report: str = ""
    judgement: str | None = None
    why: str | None = None


@dataclass(frozen=True)
class MutantsRecord:
    """The mutants of the engines of one run. `num_points` are all that their sources have."""

    made: Provenance
    is_complete: bool
    engines: tuple[str, ...]
    sources: tuple[str, ...]
    models: tuple[str, ...]
    seed: int
    num_points: int
    num_unreached: int
    mutants: tuple[MutantRecord, ...]


MUTANTS = FileKind("table of mutants", "batchproof.mutants", 1, MutantsRecord)
