"""Which files a site is made from."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.records.file_kinds import parsed
from batchproof.records.invariance import INVARIANCE, InvarianceRecord
from batchproof.records.verdict import VERDICT, EngineVerdict
from batchproof.report.inputs import Kind, Source, kind_of, source_of

KNOWN = "verdicts (verdict.json), benchmarks, conformance tables, invariance, faults and honest engines"


@dataclass(frozen=True, slots=True)
class VerdictFile:
    """A verdict and where it lies, since it names files beside it."""

    path: Path
    verdict: EngineVerdict


@dataclass(frozen=True, slots=True)
class InvarianceFile:
    """Grades of invariance and their file."""

    path: Path
    record: InvarianceRecord


Input = VerdictFile | InvarianceFile | Source


@dataclass(frozen=True, slots=True)
class Found:
    """All that the site shows, each part by date, the newest first."""

    verdicts: tuple[VerdictFile, ...]
    invariance: tuple[InvarianceFile, ...]
    sources: tuple[Source, ...]

    def of(self, kind: Kind) -> tuple[Source, ...]:
        return tuple(each for each in self.sources if each.kind is kind)


def read_all(paths: Sequence[Path], site: Path) -> Found:
    """Returns what the files hold, and those in the folders and below, save in that of the site.

    Raises `UsageError` for a file that cannot be read, and for a file or folder that holds nothing to
    show.
    """
    found: dict[Path, Input] = {}
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is no file or folder '{path}'; a site is made from {KNOWN}")
        read = {each.resolve(): _read(each) for each in _files(path, site.resolve())}
        usable = {at: each for at, each in read.items() if each is not None}
        if not usable:
            what = f"no *.json below '{path}'" if path.is_dir() else f"'{path}' is no file"
            raise UsageError(f"{what} that a site shows: {KNOWN}")
        if num_others := len(read) - len(usable):
            print(f"left out: {num_others} JSON files of other kinds in {path}", file=sys.stderr)
        found |= usable
    return _sorted(found.values())


def _files(path: Path, site: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for each in sorted(path.rglob("*.json")):
        is_hidden = any(part.startswith(".") for part in each.relative_to(path).parts)
        if not is_hidden and each.is_file() and not each.resolve().is_relative_to(site):
            yield each


def _read(path: Path) -> Input | None:
    """Returns what the file holds; None if it is of another kind. Raises `UsageError`."""
    document = parsed(path)
    if VERDICT.owns(document):
        return VerdictFile(path, VERDICT.of(path, document))
    if INVARIANCE.owns(document):
        return InvarianceFile(path, INVARIANCE.of(path, document))
    kind = kind_of(document)
    return None if kind is None else source_of(path, kind, document)


def _sorted(inputs: Iterable[Input]) -> Found:
    inputs = sorted(
        inputs, key=lambda each: (_date(each), each.path.name, str(each.path)), reverse=True
    )
    return Found(
        tuple(each for each in inputs if isinstance(each, VerdictFile)),
        tuple(each for each in inputs if isinstance(each, InvarianceFile)),
        tuple(each for each in inputs if isinstance(each, Source)),
    )


def _date(each: Input) -> str:
    if isinstance(each, Source):
        return each.provenance.date
    return each.verdict.made.date if isinstance(each, VerdictFile) else each.record.made.date
