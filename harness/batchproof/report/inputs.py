"""Which files the report is made from, and what each of them is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

from batchproof.errors import UsageError
from batchproof.records.benchmark import BENCHMARK, BenchmarkRecord
from batchproof.records.decode import decode
from batchproof.records.file_kinds import FileKind, parsed
from batchproof.records.honest import HONEST, HonestRecord
from batchproof.records.kills import KILL_TABLE, KillTableRecord
from batchproof.records.provenance import Provenance
from batchproof.records.table import CONFORMANCE, ConformanceTable
from batchproof.report.rows import Data

RESULTS = Path("results")
KNOWN = (
    "benchmarks (pytest --benchmark-only), conformance tables (pytest --table=FILE), "
    "faults.json and honest.json"
)
Made = TypeVar("Made")
Record = BenchmarkRecord | ConformanceTable | KillTableRecord | HonestRecord


class Kind(Enum):
    """Kinds of files, in the order of the page."""

    BENCHMARK = "benchmark"
    CONFORMANCE = "conformance table"
    FAULTS = "planted faults"
    HONEST = "honest engines"


FILES: Mapping[Kind, FileKind[Any]] = {
    Kind.BENCHMARK: BENCHMARK,
    Kind.CONFORMANCE: CONFORMANCE,
    Kind.FAULTS: KILL_TABLE,
    Kind.HONEST: HONEST,
}


@dataclass(frozen=True, slots=True)
class Source:
    """One file, read and checked. `data` is the whole document."""

    path: Path
    kind: Kind
    data: Data

    @property
    def record(self) -> Record:
        found: Record = FILES[self.kind].of(self.path, self.data)
        return found

    @property
    def made(self) -> Data:
        """Returns its provenance, as it was written."""
        made: Data = (self.data.get("header") or self.data)["made"]
        return made

    @property
    def provenance(self) -> Provenance:
        return decode(Provenance, self.made)

    @property
    def is_complete(self) -> bool:
        """Returns False if the run that wrote it was stopped."""
        return self.record.is_complete


def sources(paths: Sequence[Path]) -> list[Source]:
    """Returns the files in the order of the page.

    Raises `UsageError` for a named file that cannot be used. Without names, only files of a known
    schema are taken.
    """
    found = [_read(path) for path in dict.fromkeys(paths)] if paths else _default_sources()
    kinds = list(Kind)
    return sorted(found, key=lambda source: kinds.index(source.kind))


def _default_sources() -> list[Source]:
    found = []
    for path in sorted(RESULTS.glob("*.json")):
        document = parsed(path)
        kind = kind_of(document)
        if kind is None:
            print(f"left out: {path} is of another schema", file=sys.stderr)
        else:
            found.append(source_of(path, kind, document))
    if not found:
        raise UsageError(f"there is no result file in '{RESULTS}': name some, of {KNOWN}")
    return found


def _read(path: Path) -> Source:
    document = parsed(path)
    kind = kind_of(document)
    if kind is None:
        raise UsageError(f"'{path}' is no result file that a report is made of: {KNOWN}")
    return source_of(path, kind, document)


def source_of(path: Path, kind: Kind, document: object) -> Source:
    """Returns a document that `parsed` has read, checked. Raises `UsageError` as its reader does."""
    FILES[kind].of(path, document)
    return Source(path, kind, cast(Data, document))


def made_of(source: Source, make: Callable[[Source], Made]) -> Made:
    """Returns what is made of a file. Raises `UsageError` if the file lacks what that needs."""
    try:
        return make(source)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"result file '{source.path}' is damaged, for it ends in {what}") from error


def kind_of(document: object) -> Kind | None:
    """Returns the kind by the schema, in whatever version: one that is too new is refused by its
    reader.
    """
    return next((kind for kind, file in FILES.items() if file.owns(document)), None)
