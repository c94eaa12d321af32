"""Reports on defects of released libraries as pages in Markdown, one for each and an index."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from batchproof.records.texts import header, line
from batchproof_lab.reports.recording import Recording, read_recording
from batchproof_lab.reports.upstream_report import UpstreamReport, UpstreamReports

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
