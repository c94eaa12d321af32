"""The verdicts of each engine by release, and the addresses of their pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from packaging.version import InvalidVersion, Version

from batchproof.records.texts import slug
from batchproof.records.verdict import EngineVerdict
from batchproof.site.inputs import VerdictFile


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict. `page` is the folder of its page, which holds the verdict and its failures as well."""

    path: Path
    verdict: EngineVerdict
    page: str

    @property
    def product(self) -> str:
        """Returns the name of what was released; that on the command line if it names no release."""
        name, _, version = (self.verdict.release or "").rpartition(" ")
        return name if name and version[:1].isdigit() else self.verdict.release or self.verdict.title

    @property
    def version(self) -> str:
        """Returns the version, which may be empty."""
        return (self.verdict.release or "").removeprefix(self.product).strip()

    @property
    def configuration(self) -> str:
        """Returns what makes it another engine than the release as it comes; may be empty."""
        release = self.verdict.release or self.product
        return self.verdict.title.removeprefix(release).lstrip(", ")

    @property
    def date(self) -> str:
        return self.verdict.made.date[:10]

    @property
    def rank(self) -> tuple[bool, Version, str]:
        """Returns what grows with the release. A judgement that was stopped comes before all others."""
        return self.verdict.is_complete, version_key(self.version), self.verdict.made.date


@dataclass(frozen=True, slots=True)
class Engine:
    """A released engine with all its verdicts, the newest first."""

    product: str
    judged: tuple[Judged, ...]

    @property
    def newest(self) -> tuple[Judged, ...]:
        """Returns the verdicts on the newest release, the newest of each configuration."""
        release = [each for each in self.judged if each.rank[:2] == self.judged[0].rank[:2]]
        last = {each.configuration: each for each in reversed(release)}
        return tuple(last[name] for name in sorted(last))


def engines_of(files: Iterable[VerdictFile]) -> tuple[Engine, ...]:
    oldest_first = sorted(files, key=lambda each: (each.made.date, str(each.path)))
    pages = _unique(each.record.title for each in oldest_first)
    judged = [
        Judged(f.path, f.record, f"verdicts/{page}")
        for f, page in zip(oldest_first, pages, strict=True)
    ]
    judged.sort(key=attrgetter("rank"), reverse=True)
    products = sorted({each.product for each in judged}, key=lambda name: (name.casefold(), name))
    return tuple(
        Engine(product, tuple(each for each in judged if each.product == product))
        for product in products
    )


def _unique(titles: Iterable[str]) -> Iterator[str]:
    """Yields a name for each title. Later ones get numbers, so that what is added moves no page."""
    seen: set[str] = set()
    for title in titles:
        name, number = slug(title), 1
        while name.casefold() in seen:
            number += 1
            name = f"{slug(title)}-{number}"
        seen.add(name.casefold())
        yield name


def version_key(version: str) -> Version:
    """Returns a key that sorts versions: 4.8 < 4.8.5rc1 < 4.8.5 < 4.8.5.post1 < 4.10. One that is none
    comes first."""
    try:
        return Version(version)
    except InvalidVersion:
        return Version("0.dev0")
