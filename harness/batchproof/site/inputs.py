"""Which files a site is made from."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, cast

from batchproof.errors import UsageError
from batchproof.records.benchmark import BENCHMARK, BenchmarkRecord
from batchproof.records.file_kinds import FileKind, parsed
from batchproof.records.matrix import MATRICES
from batchproof.records.provenance import Provenance
from batchproof.records.verdict import VERDICT, EngineVerdict

RESULTS = Path("results")
KNOWN = "verdicts (verdict.json) and benchmarks"
KINDS: tuple[FileKind[Any], ...] = (VERDICT, BENCHMARK)
Record = TypeVar("Record")
Data: TypeAlias = Mapping[str, Any]  # a document, or a part of it: figures by name


@dataclass(frozen=True, slots=True)
class InputFile(Generic[Record]):
    """A file, checked. `data` is the whole document: the record of a benchmark leaves figures out."""

    path: Path
    record: Record
    data: Data

    @property
    def made(self) -> Provenance:
        record: Any = self.record
        made: Provenance = record.header.made if isinstance(record, BenchmarkRecord) else record.made
        return made


VerdictFile: TypeAlias = InputFile[EngineVerdict]
BenchmarkFile: TypeAlias = InputFile[BenchmarkRecord]


@dataclass(frozen=True, slots=True)
class SiteInputs:
    """All that the site shows, each part by date, the newest first."""

    verdicts: Sequence[VerdictFile]
    benchmarks: Sequence[BenchmarkFile]


def read_inputs(paths: Sequence[Path]) -> SiteInputs:
    """Reads the files, and those in the folders and below.

    Raises `UsageError` for a file that cannot be read, and for a file or folder that holds nothing to
    show.
    """
    found: dict[Path, InputFile[Any]] = {}
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is no file or folder '{path}'; a site is made from {KNOWN}")
        read = {each.resolve(): read_input(each) for each in _files(path)}
        usable = {at: each for at, each in read.items() if each is not None}
        if not usable:
            what = f"no *.json below '{path}'" if path.is_dir() else f"'{path}' is no file"
            raise UsageError(f"{what} that a site shows: {KNOWN}")
        if num_others := len(read) - len(usable):
            print(f"left out: {num_others} JSON files of other kinds in {path}", file=sys.stderr)
        found |= usable
    return _sorted(found.values())


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for each in sorted(path.rglob("*.json")):
        # The cells of a matrix are no history of one engine.
        is_hidden = any(
            part.startswith(".") or part == MATRICES for part in each.relative_to(path).parts
        )
        if not is_hidden and each.is_file():
            yield each


def read_input(path: Path) -> InputFile[Any] | None:
    """Returns what the file holds; None if it is of another kind. Raises `UsageError`."""
    document = parsed(path)
    kind = next((each for each in KINDS if each.owns(document)), None)
    return None if kind is None else InputFile(path, kind.of(path, document), cast(Data, document))


def _sorted(inputs: Iterable[InputFile[Any]]) -> SiteInputs:
    newest_first = sorted(
        inputs, key=lambda each: (each.made.date, each.path.name, str(each.path)), reverse=True
    )
    return SiteInputs(
        *([each for each in newest_first if isinstance(each.record, kind.record)] for kind in KINDS)
    )
