"""What the page of a verdict shows of each finding, and the files beside the verdict that it hands on.

A verdict may come from elsewhere, and what it names is published: only failure files in its own folder
and scripts in `reproductions/`, beside the folder, are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from batchproof.findings.causes import Cause
from batchproof.records.verdict import FailureGroup, IssueRecord
from batchproof.site.history import Judged

REPRODUCTIONS = "reproductions"  # beside the folders of the verdicts
SETUP = re.compile(r"^from (setup_\w+) import", re.MULTILINE)  # a file beside the script


@dataclass(frozen=True, slots=True)
class Chip:
    """A word that is readable without its colour; `kind`: good, bad, warn or none."""

    word: str
    kind: str


DEFECT, DOCUMENTED = Chip("defect", "bad"), Chip("documented convention", "warn")
UNEXPLAINED = Chip("cause not known", "bad")


@dataclass(frozen=True, slots=True)
class Script:
    """A script that shows a defect with the library alone. `href` leads there from the verdict."""

    name: str
    href: str
    text: str


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """A group of failures. `failure` leads to the failure file; empty if there is none."""

    number: int
    group: FailureGroup
    chip: Chip
    diagnosis: str
    failure: str
    scripts: tuple[Script, ...]


def findings(judged: Judged) -> tuple[FoundGroup, ...]:
    return tuple(
        FoundGroup(
            number,
            group,
            chip_of(group),
            _diagnosis(group),
            quote(failure.as_posix()) if (failure := _failure(judged, group)) else "",
            scripts(judged, group.issue),
        )
        for number, group in enumerate(judged.verdict.groups, start=1)
    )


def chip_of(group: FailureGroup) -> Chip:
    """Returns what is known of the group in a word."""
    if group.issue is None:
        return UNEXPLAINED
    return DOCUMENTED if group.is_documented else DEFECT


def _diagnosis(group: FailureGroup) -> str:
    """Returns the cause that the diagnosis names, in words; empty if it named none."""
    name = group.failure.cause if group.failure else None
    cause = Cause.__members__.get(name or "")
    return f"{cause.word}: {cause.value}" if cause else name or ""


def scripts(judged: Judged, issue: IssueRecord | None) -> tuple[Script, ...]:
    """Returns the scripts of an issue that lie where scripts may lie, and what they import there."""
    folder = judged.path.parent.parent / REPRODUCTIONS
    found: dict[str, Script] = {}
    names = [f"../{each}" for each in (issue.scripts if issue else ())]
    for name in names:
        path = _inside(folder, folder / name)
        if path is not None and path.suffix == ".py":
            text = (folder / path).read_text(encoding="utf-8", errors="replace")
            found[path.name] = Script(path.name, quote(f"{REPRODUCTIONS}/{path.name}"), text)
            names += [f"{each}.py" for each in SETUP.findall(text)]
    return tuple(found.values())


def attachments(judged: Judged) -> Iterator[tuple[str, bytes]]:
    """Yields the files that the page of a verdict links, each with its place in the site."""
    verdict = judged.verdict
    yield f"{judged.page}/verdict.json", judged.path.read_bytes()
    for group in verdict.groups:
        if failure := _failure(judged, group):
            yield f"{judged.page}/{failure.as_posix()}", (judged.path.parent / failure).read_bytes()
    for issue in (*(group.issue for group in verdict.groups), *verdict.unshown):
        for script in scripts(judged, issue):
            yield f"{judged.page}/{REPRODUCTIONS}/{script.name}", script.text.encode()


def _failure(judged: Judged, group: FailureGroup) -> Path | None:
    """Returns the path of the failure file below the folder of the verdict."""
    name = group.failure.replay if group.failure else None
    path = _inside(judged.path.parent, judged.path.parent / name) if name else None
    return path if path is not None and path.suffix == ".json" else None


def _inside(folder: Path, path: Path) -> Path | None:
    """Returns the path below the folder, links followed; None if it is no file in it."""
    path, folder = path.resolve(), folder.resolve()
    return path.relative_to(folder) if path.is_relative_to(folder) and path.is_file() else None
