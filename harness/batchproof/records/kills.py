"""The kill table: every planted fault, and what caught it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance


@dataclass(frozen=True)
class KillRecord:
    """One session against one fault. `caught_by`: a test function; None: the fault survived."""

    broken: str | None  # the promise that the failure names
    cause: str | None  # what its diagnosis names
    seed: int = 0
    caught_by: str | None = None
    examples: int = 0  # workloads given to the engine until the first failure
    seconds: float = 0.0


@dataclass(frozen=True)
class FaultRow:
    """One planted fault. `home`: the quickest model that shows it, else all models together."""

    kind: Annotated[str, Field(alias="class")]
    promise: str
    cause: str
    home: tuple[str, ...]
    kills: tuple[KillRecord, ...]  # at home, by seed
    lie: str = ""  # what the fault does, in a sentence
    thread: str = ""  # owner/repository#number of the bug it is modelled on
    models: tuple[str, ...] = ()  # that show it
    own_failures: tuple[str, ...] = ()  # where the harness broke instead of reporting the fault
    code: str = ""  # digest of the fault and of the tests that caught it at home


@dataclass(frozen=True)
class FunctionRow:
    """One conformance test function, and the faults it was the first to catch."""

    is_generated: bool
    faults: tuple[str, ...]


@dataclass(frozen=True)
class DiagnosisScore:
    """One vote for each fault and seed at home. `confusion`: expected cause -> named cause -> votes."""

    right: int = 0
    votes: int = 0
    confusion: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class KillUpdate:
    """Rows that were made later than the rest."""

    faults: tuple[str, ...]
    made: Provenance


@dataclass(frozen=True)
class KillTableRecord:
    """`is_full`: all faults on all embedded models."""

    made: Provenance
    is_complete: bool
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    faults: Mapping[str, FaultRow]
    diagnosis: DiagnosisScore
    tests: Mapping[str, FunctionRow] = field(default_factory=dict)
    is_full: bool = False
    updates: tuple[KillUpdate, ...] = ()


KILL_TABLE = FileKind("kill table", "batchproof.kill-table", 1, KillTableRecord)
