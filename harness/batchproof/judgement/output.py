"""Where verdicts lie: a folder for each engine and release, which holds no path of this machine.

<release>/verdict.md, verdict.json     the page, and the record it is made of
<release>/failures/*.json              the failures that the page shows, to be run again
.running/<engine>/                     what a judgement needs to go on; not tracked
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from batchproof.cli.choices import WHOLE, Shard
from batchproof.judgement.verdict_page import verdict_page
from batchproof.records.file_kinds import replace_text
from batchproof.records.slug import slug
from batchproof.records.verdict import VERDICT, EngineVerdict, FailureGroup
from batchproof.requirements.verdict_of_journal import passed_on

RUNNING = ".running"
RECORD, PAGE, FAILURES = "verdict.json", "verdict.md", "failures"


def running_folder(output: Path, engine: str, shard: Shard = WHOLE) -> Path:
    """Returns the folder of a judgement that is not finished, or of a shard of it."""
    suffix = f"-{shard.index}of{shard.number}" if shard.number > 1 else ""
    return output / RUNNING / f"{slug(engine)}{suffix}"


def shard_folders(output: Path, engine: str) -> list[Path]:
    return sorted((output / RUNNING).glob(f"{slug(engine)}-[0-9]*of[0-9]*"))


def written(verdict: EngineVerdict, output: Path) -> Path:
    """Writes record, page and failure files, replacing an older verdict on this engine and release.

    Returns the path of the page.
    """
    folder = _folder_of(verdict, output)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / FAILURES, ignore_errors=True)
    groups = tuple(_kept(group, folder) for group in verdict.groups)
    clean = passed_on(replace(verdict, groups=groups))
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


def _kept(group: FailureGroup, folder: Path) -> FailureGroup:
    """Copies the failure file of a group beside the verdict and returns the group with the new path."""
    if group.failure is None or group.failure.replay is None:
        return group
    source = Path(group.failure.replay)
    kept = folder / FAILURES / source.name
    kept.parent.mkdir(exist_ok=True)
    shutil.copy(source, kept)
    return replace(
        group,
        failure=replace(group.failure, replay=f"{FAILURES}/{source.name}"),
        shown_report=group.shown_report.replace(str(source), str(kept)),
    )
