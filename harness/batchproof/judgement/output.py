"""Where verdicts lie: a folder for each engine and release, which holds no path of this machine.

README.md                              one line for each verdict
<release>/verdict.md, verdict.json     the page, and the record it is made of
<release>/failures/*.json              the failures that the page shows, to be run again
.running/<engine>/                     what a judgement needs to go on; not tracked
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from batchproof.judgement.verdict_page import verdict_page
from batchproof.records.file_kinds import replace_text
from batchproof.records.texts import header, line, slug
from batchproof.records.verdict import VERDICT, EngineVerdict, FailureGroup
from batchproof.requirements.verdict_of_journal import without_local_paths

RUNNING = ".running"
RECORD, PAGE, FAILURES = "verdict.json", "verdict.md", "failures"
HEAD = """# Released engines before the suite

Each line is the verdict on one released engine. Its folder holds the page, the same as `verdict.json`,
and the failure files that the page names. `findings.yaml` holds what is known of the failures,
`reproductions/` scripts that show them with the library alone, and [reports/](reports/README.md) what
is ready to be sent to the maintainers.
"""


def running_folder(output: Path, engine: str) -> Path:
    """Returns the folder of a judgement that is not finished."""
    return output / RUNNING / slug(engine)


def write_verdict(verdict: EngineVerdict, output: Path) -> Path:
    """Writes record, page and failure files, replacing an older verdict on this engine and release.

    Returns the path of the page.
    """
    folder = _folder_of(verdict, output)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / FAILURES, ignore_errors=True)
    groups = tuple(_with_copied_failure(group, folder) for group in verdict.groups)
    clean = without_local_paths(replace(verdict, groups=groups))
    VERDICT.write(clean, folder / RECORD)
    replace_text(folder / PAGE, verdict_page(clean))
    return folder / PAGE


def _folder_of(verdict: EngineVerdict, output: Path) -> Path:
    """Returns the folder named by the verdict's title and, if another engine has that title, by the
    engine's text as well.
    """
    folder = output / slug(verdict.title)
    path = folder / RECORD
    if path.exists() and VERDICT.read(path).engine != verdict.engine:
        return output / f"{slug(verdict.title)}-{slug(verdict.engine)}"
    return folder


def _with_copied_failure(group: FailureGroup, folder: Path) -> FailureGroup:
    """Copies the failure file of a group into the verdict's folder and returns the group with the new
    path.
    """
    if group.failure is None or group.failure.replay is None:
        return group
    source = Path(group.failure.replay)
    copy = folder / FAILURES / source.name
    copy.parent.mkdir(exist_ok=True)
    shutil.copy(source, copy)
    return replace(
        group,
        failure=replace(group.failure, replay=f"{FAILURES}/{source.name}"),
        shown_report=group.shown_report.replace(str(source), str(copy)),
    )


def write_index(folder: Path) -> None:
    """Writes the table of all verdicts into the folder."""
    replace_text(folder / "README.md", "\n".join([HEAD, *index_table(folder), ""]))


def index_table(folder: Path) -> Iterator[str]:
    """Yields a line in Markdown for the verdict of each judgement that was not stopped."""
    yield from header(
        "engine", "judged", "answers", "held", "broken", "differs by documented convention"
    )
    for path in sorted(folder.glob(f"*/{RECORD}")):
        verdict = VERDICT.read(path)
        if verdict.is_complete:
            yield line(
                f"[{verdict.title}]({path.parent.name}/{PAGE})",
                verdict.made.date[:10],
                f"{verdict.totals.num_requests:,}",
                str(len(verdict.held)),
                ", ".join(verdict.broken) or "none",
                ", ".join(verdict.differing) or "none",
            )
