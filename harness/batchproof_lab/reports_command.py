"""`batchproof lab reports`: writes the reports on defects of released libraries, ready to send.

Nothing is sent.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.records.file_kinds import replace_text
from batchproof.records.markdown import header, line
from batchproof.requirements.issues import DEFAULT_ISSUES
from batchproof.run.registry import released_engines
from batchproof_lab.reports import (
    Recording,
    UpstreamReport,
    UpstreamReports,
    read_recording,
    read_reports,
    record,
    recording_of,
)

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
    found = read_reports(FOLDER / "reports.yaml")
    shown = True
    for each in _chosen(found, arguments.record):
        shown &= _recorded(each, found)
    folder = FOLDER / "reports"
    folder.mkdir(exist_ok=True)
    texts = pages(found, FOLDER)
    for name, text in texts.items():
        replace_text(folder / name, text)
    print(f"written: {len(texts) - 1} reports and their index in {folder}", file=sys.stderr)
    return 0 if shown else 1


def _chosen(found: UpstreamReports, names: list[str] | None) -> list[UpstreamReport]:
    """Returns the reports whose scripts are to be run; an empty list of names means all."""
    known = {each.name: each for each in found.reports}
    for name in names or ():
        if name not in known:
            raise UsageError(f"REPORT {name!r} is none of {', '.join(known)}")
    return [] if names is None else [known[name] for name in names or known]


def _recorded(report: UpstreamReport, found: UpstreamReports) -> bool:
    library = found.libraries[report.library]
    python: str | None = sys.executable
    if library.environment is not None:
        python = released_engines().interpreter(library.environment)
    if python is None:
        raise UsageError(f"{library.title} is not installed: batchproof install {library.environment}")
    shown = True
    for name in report.scripts:
        script = Path(FOLDER, "reproductions", name)
        recording = record(script, python, library.packages)
        recording.write(recording_of(script))
        print(f"{name}: {'reproduced' if recording.is_reproduced else 'NOT REPRODUCED'}")
        shown &= recording.is_reproduced
    return shown


INDEX = """# Reports for upstream

Each page reports one defect of a released library to its maintainers: a script that needs the library
alone, what it printed here, what it should print, and the public threads that were found. None has been
sent; before one is, look for newer threads. `batchproof lab reports` writes these pages from
`../reports.yaml`, the scripts in `../reproductions/` and their recorded outputs.

Wrong answers come first: valid requests that are answered wrongly and silently. Then what takes other
requests down, what loses requests, settings that are not kept, and bad input that is answered.
"""


def pages(found: UpstreamReports, folder: Path) -> dict[str, str]:
    """Returns the text of each page by its file's name. `folder` holds `reproductions/`.

    Raises `UsageError` where a script's output is not recorded.
    """
    scripts = folder / "reproductions"
    texts = {f"{each.name}.md": _page(each, found, scripts) for each in found.reports}
    return texts | {"README.md": "\n".join([INDEX, *_table(found, scripts), ""])}


def _table(found: UpstreamReports, scripts: Path) -> Iterator[str]:
    yield from header("effect", "library", "report", "script", "shown on")
    for each in found.in_order():
        recordings = [read_recording(scripts / script) for script in each.scripts]
        shown = all(recording.is_reproduced for recording in recordings)
        yield line(
            each.effect,
            found.libraries[each.library].title,
            f"[{each.title}]({each.name}.md)",
            ", ".join(f"[`{script}`](../reproductions/{script})" for script in each.scripts),
            recordings[0].packages.partition(",")[0] if shown else "NOT REPRODUCED",
        )


def _page(report: UpstreamReport, found: UpstreamReports, scripts: Path) -> str:
    library = found.libraries[report.library]
    recordings = {script: read_recording(scripts / script) for script in report.scripts}
    first = recordings[report.scripts[0]]
    return "\n\n".join(
        [
            f"# {report.title}",
            f"{library.title} (`{library.repository}`): {first.packages}. {first.platform}, on a CPU.",
            report.summary.strip(),
            "## To reproduce",
            f"```\npip install {_requirements(first)}\n```",
            *_scripts(recordings, scripts),
            "## Expected",
            report.expected.strip(),
            "## Cause, as far as known",
            f"{report.cause.strip()}\n\nRead in {library.source}.",
            "## Workaround",
            report.workaround.strip(),
            "## Threads",
            "\n".join(_threads(report, found.searched_on)),
            "",
        ]
    ).removesuffix("\n")


def _requirements(recording: Recording) -> str:
    """Returns the packages as pip takes them; a local version such as `+cpu` is on no index."""
    packages = re.sub(r"\+\w+", "", recording.packages).split(", ")
    return " ".join("==".join(each.split()) for each in packages)


def _scripts(recordings: dict[str, Recording], scripts: Path) -> Iterator[str]:
    for script, recording in recordings.items():
        yield f"```python\n{_body(scripts / script)}\n```"
        ended = "" if recording.is_reproduced else f"\n\nIt ended with status {recording.status}."
        yield f"It prints (recorded on {recording.date}):"
        yield f"```\n{recording.output.rstrip()}\n```{ended}"


def _body(script: Path) -> str:
    """Returns the script without its docstring, which the page says in other words."""
    text = script.read_text(encoding="utf-8")
    docstring = ast.parse(text).body[0]
    return "\n".join(text.splitlines()[docstring.end_lineno :]).strip()


def _threads(report: UpstreamReport, searched_on: str) -> Iterator[str]:
    yield f"Searched on {searched_on}, for: {report.searched.strip()}."
    if not any(thread.relation == "same" for thread in report.threads):
        yield "No thread on this defect was found."
    yield ""
    for thread in report.threads:
        kind = "the same" if thread.relation == "same" else "related"
        note = f" {thread.note.strip()}" if thread.note else ""
        yield f'* [{thread.number}]({thread.url}), "{thread.title}": {kind}.{note}'
