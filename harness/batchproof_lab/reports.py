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

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal, get_args

from batchproof.errors import UsageError
from batchproof.records.decode import DecodeError, decode
from batchproof.records.file_kinds import replace_text
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


TIME_LIMIT_S = 300.0
REPRODUCED = 1  # the scripts' own exit status; an exception that nothing caught has another
VERSIONS = """
import platform, sys
from importlib.metadata import version
print(", ".join(f"{name} {version(name.partition('[')[0])}" for name in sys.argv[1:]))
print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
"""
RUN = """
import runpy, sys, traceback
try:
    runpy.run_path(sys.argv[1], run_name="__main__")
except Exception:
    traceback.print_exc()
    sys.exit(3)
"""


@dataclass(frozen=True)
class Recording:
    """A script's output. `status` is its exit status, or None if it ran into the time limit."""

    packages: str
    platform: str
    date: str
    status: int | None
    digest: str
    output: str

    @property
    def is_reproduced(self) -> bool:
        return self.status == REPRODUCED

    def write(self, path: Path) -> None:
        status = "ended by the time limit" if self.status is None else f"exit status {self.status}"
        head = (self.packages, self.platform, f"{self.date}, {status}", f"script sha256 {self.digest}")
        path.parent.mkdir(exist_ok=True)
        replace_text(path, "".join(f"# {each}\n" for each in head) + self.output)


def recording_of(script: Path) -> Path:
    return script.parent / "outputs" / f"{script.stem}.txt"


def digest_of(script: Path) -> str:
    return hashlib.sha256(script.read_bytes()).hexdigest()


def read_recording(script: Path) -> Recording:
    """Returns the recorded output. Raises `UsageError` if there is none, or if it is one of another
    version of the script.
    """
    path = recording_of(script)
    try:
        *head, output = path.read_text(encoding="utf-8").split("\n", 4)
        packages, platform, when, digest = (each.removeprefix("# ") for each in head)
        day, _, status = when.partition(", ")
    except (OSError, ValueError) as error:
        raise UsageError(f"{script.name} has no recorded output {path}: {error}") from error
    code = int(status.split()[-1]) if status.startswith("exit status") else None
    found = Recording(packages, platform, day, code, digest.split()[-1], output)
    if found.digest != digest_of(script):
        raise UsageError(f"{path} is the output of another version of {script.name}: record it again")
    return found


def record(script: Path, python: str, packages: Sequence[str]) -> Recording:
    """Runs the script and returns what it printed. Raises `UsageError` if a package is missing."""
    try:
        told = subprocess.run(
            [python, "-c", VERSIONS, *packages], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(f"{python} lacks one of {', '.join(packages)}") from error
    installed, platform = told.stdout.splitlines()
    command, status = [python, "-u", "-c", RUN, str(script)], None
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
        status, output = ran.returncode, ran.stdout
        print(ran.stderr if status not in (0, REPRODUCED) else "", file=sys.stderr, end="")
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
    return Recording(installed, platform, str(date.today()), status, digest_of(script), output)
