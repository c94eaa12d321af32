"""A defect of a released library, as its maintainers would want to read it.

`results/engines/reports.yaml` holds what people found out:

    searched_on: ...                      when and where threads were looked for
    libraries:
      ctranslate2:
        title: CTranslate2
        repository: OpenNMT/CTranslate2
        environment: ctranslate2          of `batchproof install`; left out: the Python that runs this
        packages: [ctranslate2, torch]    whose versions count, and which a reader installs
        source: commit 0d8bcd36           what the causes were read in
    reports:
      - name: ctranslate2-empty-prompt    of the page; findings.yaml names it in `report`
        library: ctranslate2
        title: ...                        as in the tracker
        effect: wrong answers             one of `EFFECTS`, by which the index is in order
        scripts: [a.py]                   in reproductions/; each has a recorded output
        summary: ...
        expected: ...                     what should happen, and what says so
        cause: ...
        workaround: ...
        searched: ...                     words that were looked for
        threads:
          - {url: ..., title: ..., relation: same, note: ...}   or related; the note may be left out
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from batchproof.errors import UsageError
from batchproof.records.decode import DecodeError, decode
from batchproof.validation.yaml_nodes import read_yaml

Effect = Literal["wrong answers", "outage", "lost requests", "broken setting", "unchecked input"]
EFFECTS: tuple[str, ...] = get_args(Effect)  # the worst first


@dataclass(frozen=True)
class Library:
    """Whose defect it is, and how it is installed."""

    title: str
    repository: str
    packages: tuple[str, ...]
    source: str
    environment: str | None = None


@dataclass(frozen=True)
class Thread:
    """A public thread on the same defect, or on what borders on it."""

    url: str
    title: str
    relation: Literal["same", "related"]
    note: str = ""

    @property
    def number(self) -> str:
        """Returns it as it is cited: `owner/name#12`."""
        owner, name, _, number = self.url.split("/")[3:7]
        return f"{owner}/{name}#{number}"


@dataclass(frozen=True)
class UpstreamReport:
    """An entry of the file."""

    name: str
    library: str
    title: str
    effect: Effect
    scripts: tuple[str, ...]
    summary: str
    expected: str
    cause: str
    workaround: str
    searched: str
    threads: tuple[Thread, ...] = ()


@dataclass(frozen=True)
class UpstreamReports:
    """The whole file."""

    searched_on: str
    libraries: Mapping[str, Library]
    reports: tuple[UpstreamReport, ...]

    def in_order(self) -> list[UpstreamReport]:
        """Returns the reports, the worst effect first."""
        return sorted(self.reports, key=lambda each: (EFFECTS.index(each.effect), each.name))


def read_reports(path: Path) -> UpstreamReports:
    """Returns the file's content. Raises `UsageError` naming the place and what is wrong there."""
    root = read_yaml(path, "the file of reports", "libraries and reports")
    try:
        found = decode(UpstreamReports, root.value(), is_closed=True)
    except DecodeError as error:
        raise UsageError(f"{path}: {error}") from error
    for problem in _problems(found, path.parent / "reproductions"):
        raise UsageError(f"{path}: {problem}")
    return found


def _problems(found: UpstreamReports, scripts: Path) -> Iterator[str]:
    names = [each.name for each in found.reports]
    for each in found.reports:
        if names.count(each.name) > 1:
            yield f"two reports have the name {each.name!r}"
        if each.library not in found.libraries:
            yield f"{each.name}: library {each.library!r} is none of {', '.join(found.libraries)}"
        if not each.scripts:
            yield f"{each.name}: no script shows it"
        for script in each.scripts:
            if not (scripts / script).is_file():
                yield f"{each.name}: there is no script {scripts / script}"
        for thread in each.threads:
            if len(thread.url.split("/")) != 7:  # https://github.com/owner/name/issues/12
                yield f"{each.name}: {thread.url!r} is no thread on GitHub"
