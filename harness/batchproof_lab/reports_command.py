"""`batchproof lab reports`: writes the reports on defects of released libraries, ready to send.

Nothing is sent. `results/engines/reports.yaml` has the text of the reports and explains its keys. The
output of each reproduction script is in `outputs/`, below four lines of comment: the packages, the
platform, the date and exit status, and the digest of the code that the report prints.
"""

import argparse
import ast
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Literal, get_args

from batchproof.cli import choices
from batchproof.errors import UsageError
from batchproof.records.decode import DecodeError, decode
from batchproof.records.file_kinds import replace_text
from batchproof.requirements.issues import DEFAULT_ISSUES
from batchproof.run.registry import engines_module
from batchproof.validation.yaml_nodes import read_yaml
from batchproof_lab.pages import page


def standalone(script: Path) -> str:
    """Returns the code without docstrings: the imports, then the set-ups, then the script itself."""
    imports: set[str] = set()
    bodies: dict[Path, str] = {}
    _collect(script, imports, bodies)
    parts: dict[bool, list[str]] = {True: [], False: []}
    for each in sorted(imports, key=lambda each: (each.startswith("from"), each)):
        module = each.split()[1].partition(".")[0]
        parts[module in sys.stdlib_module_names].append(each)
    text = "\n\n".join("\n".join(each) for each in parts.values() if each)
    for each in bodies.values():  # two blank lines around a function
        is_function = text.splitlines()[-1].startswith(" ") or each.startswith(("def ", "@"))
        text += ("\n\n\n" if is_function else "\n\n") + each
    return text


def _collect(script: Path, imports: set[str], bodies: dict[Path, str]) -> None:
    """Adds the imports and the code of the script's set-ups, each once, and then its own."""
    text = script.read_text(encoding="utf-8")
    lines, end = text.splitlines(), 0
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("setup_"):
            _collect(script.with_name(f"{node.module}.py"), imports, bodies)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports.add("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        elif end:
            break  # imports stand together, behind the docstring
        end = node.end_lineno or 0
    bodies.setdefault(script, "\n".join(lines[end:]).strip())


FOLDER = DEFAULT_ISSUES.parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record",
        nargs="*",
        metavar="REPORT",
        help="first run the scripts of these reports, or of all, on the libraries of `batchproof "
        "install`, and keep what they print",
    )


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every script that was run still shows its defect, else 1. Raises `UsageError`."""
    found = read_reports()
    shown = True
    if arguments.record is not None:
        known = {each.name: each for each in found.reports}
        for name in choices.select_names(arguments.record, known, "REPORT"):
            shown &= _recorded(known[name], found)
    folder = FOLDER / "reports"
    folder.mkdir(exist_ok=True)
    texts = pages(found)
    for name, text in texts.items():
        replace_text(folder / name, text)
    print(f"written: {len(texts) - 1} reports and their index in {folder}", file=sys.stderr)
    return 0 if shown else 1


def _recorded(report: "UpstreamReport", found: "UpstreamReports") -> bool:
    library = found.libraries[report.library]
    python: str | None = sys.executable
    variables: dict[str, str] = {}
    if library.environment is not None:
        libraries = engines_module("adapters.released.libraries")
        python = libraries.interpreter(library.environment)
        built = libraries.LIBRARIES[library.environment].build
        variables = {name: str(built.folder / path) for name, path in library.variables.items()}
    if python is None:
        raise UsageError(f"{library.title} is not installed: batchproof install {library.environment}")
    shown = True
    for script in report.paths:
        record(script, python, library.packages, variables)
        is_reproduced = read_recording(script).is_reproduced
        print(f"{script.name}: {'reproduced' if is_reproduced else 'NOT REPRODUCED'}")
        shown &= is_reproduced
    return shown


def pages(found: "UpstreamReports") -> dict[str, str]:
    """Returns the text of each page by its file's name. Raises `UsageError` where a script's output is
    not recorded."""
    texts, rows = {}, []
    for report in found.in_order():
        recordings = [read_recording(each) for each in report.paths]
        rows.append((report, recordings))
        texts[f"{report.name}.md"] = page(
            "report",
            found=found,
            report=report,
            library=found.libraries[report.library],
            shown=[*zip(map(standalone, report.paths), recordings, strict=True)],
        )
    return texts | {"README.md": page("reports", found=found, rows=rows)}


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
    variables: Mapping[str, str] = field(default_factory=dict)  # paths within what is compiled
    preparation: str = ""  # what a reader does beside installing the packages


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

    @property
    def paths(self) -> list[Path]:
        return [FOLDER / "reproductions" / each for each in self.scripts]


@dataclass(frozen=True)
class UpstreamReports:
    searched_on: str
    libraries: Mapping[str, Library]
    reports: tuple[UpstreamReport, ...]

    def in_order(self) -> list[UpstreamReport]:
        return sorted(self.reports, key=lambda each: (EFFECTS.index(each.effect), each.name))


def read_reports() -> UpstreamReports:
    """Returns the file's content. Raises `UsageError` naming the place and what is wrong there."""
    path = FOLDER / "reports.yaml"
    root = read_yaml(path, "the file of reports", "libraries and reports")
    try:
        return decode(UpstreamReports, root.value(), is_closed=True)
    except DecodeError as error:
        raise UsageError(f"{path}: {error}") from error


TIME_LIMIT_S = 300.0
REPRODUCED = 1  # the scripts' own exit status; an exception that nothing caught has another
RUN = """
import platform, runpy, sys, traceback
from importlib.metadata import version
_, script, *packages = sys.argv
del sys.argv[2:]
print(", ".join(f"{name} {version(name.partition('[')[0])}" for name in packages))
print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
try:
    runpy.run_path(script, run_name="__main__")
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

    @property
    def requirements(self) -> str:
        """Returns the packages as pip takes them; a local version such as `+cpu` is on no index."""
        packages = re.sub(r"\+\w+", "", self.packages).split(", ")
        return " ".join("==".join(each.split()) for each in packages)


def recording_of(script: Path) -> Path:
    return script.parent / "outputs" / f"{script.stem}.txt"


def digest_of(script: Path) -> str:
    return hashlib.sha256(standalone(script).encode()).hexdigest()


def read_recording(script: Path) -> Recording:
    """Returns the recorded output. Raises `UsageError` if there is none, or if it is one of another
    version of the script."""
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


def record(script: Path, python: str, packages: Sequence[str], variables: Mapping[str, str]) -> None:
    """Runs the script with these variables in its environment and writes what it printed. Raises
    `UsageError` if a package is missing."""
    status = "ended by the time limit"
    try:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, script.name)
            copy.write_text(standalone(script), encoding="utf-8")
            ran = subprocess.run(
                [python, "-u", "-c", RUN, str(copy), *packages],
                env={**os.environ, **variables},
                capture_output=True,
                text=True,
                timeout=TIME_LIMIT_S,
                check=False,
            )
        status, output = f"exit status {ran.returncode}", ran.stdout
        print(ran.stderr if ran.returncode not in (0, REPRODUCED) else "", file=sys.stderr, end="")
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
    try:
        installed, platform, output = output.split("\n", 2)
    except ValueError:
        raise UsageError(f"{python} lacks one of {', '.join(packages)}") from None
    head = (installed, platform, f"{date.today()}, {status}", f"script sha256 {digest_of(script)}")
    path = recording_of(script)
    path.parent.mkdir(exist_ok=True)
    replace_text(path, "".join(f"# {each}\n" for each in head) + output)
