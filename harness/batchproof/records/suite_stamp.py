"""Which suite has judged: its version, and a digest of its code."""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

from batchproof.places import BENCHMARKS, CASES, PACKAGE, SUITE
from batchproof.records.verdict import SuiteStamp


@cache
def suite_digest() -> str:
    """Returns a digest of all code that a verdict depends on, engines and libraries aside: harness,
    suite and cases. It is the same in a checkout and in the installed package."""
    digest = hashlib.sha256()
    for label, place in (("harness", PACKAGE), ("suite", SUITE), ("cases", CASES)):
        for file in sorted(_files(place)):
            digest.update(f"{label}/{file.relative_to(place).as_posix()}".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _files(place: Path) -> Iterator[Path]:
    """Yields the code in a folder, without the parts of the package that have a place of their own."""
    inner = [each for each in (SUITE, CASES, BENCHMARKS) if place in each.parents]
    for file in place.rglob("*"):
        if file.suffix in (".py", ".yaml") and not any(map(file.is_relative_to, inner)):
            yield file


def suite_stamp() -> SuiteStamp:
    """Returns the version of the package and the digest."""
    return SuiteStamp(version("batchproof"), suite_digest())
