"""All verdicts of a folder: one line for each, and by which tests each finding was met."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from batchproof.records.file_kinds import replace_text
from batchproof.records.markdown import header, line
from batchproof.records.verdict import VERDICT, EngineVerdict

HEAD = """# Released engines before the suite

Each line is the verdict on one released engine. Its folder holds the page, the same as `verdict.json`,
and the failure files that the page names. `findings.yaml` holds what is known of the failures,
[findings.md](findings.md) by which tests each was met, `reproductions/` scripts that show them with the
library alone, and [reports/](reports/README.md) what is ready to be sent to the maintainers.
"""
FINDINGS = """# By which tests each finding was met

A curated case holds one workload that was once answered wrongly. All other tests generate workloads, or
sweep sizes. A finding that cases alone meet is one that the generated workloads miss.
"""
IN_CASE = ", case "
NUM_NAMED = 3


def write_index(folder: Path) -> Path:
    """Writes both tables of all verdicts into the folder and returns the path of the first."""
    path = folder / "README.md"
    replace_text(path, "\n".join([HEAD, *index_table(folder), ""]))
    replace_text(folder / "findings.md", "\n".join([FINDINGS, *findings_table(folder), ""]))
    return path


def index_table(folder: Path, prefix: str = "") -> Iterator[str]:
    """Yields the table of the verdicts in Markdown. `prefix` begins the links."""
    yield from header(
        "engine", "judged", "answers", "held", "broken", "differs by documented convention"
    )
    for name, verdict in _verdicts(folder):
        yield line(
            f"[{verdict.title}]({prefix}{name}/verdict.md)",
            verdict.made.date[:10],
            f"{verdict.totals.num_requests:,}",
            str(len(verdict.held)),
            ", ".join(verdict.broken) or "none",
            ", ".join(verdict.differing) or "none",
        )


def findings_table(folder: Path) -> Iterator[str]:
    """Yields a line for each finding of each verdict: the curated cases and the tests that met it."""
    yield from header("engine", "finding", "curated cases", "other tests")
    for name, verdict in _verdicts(folder):
        for group in verdict.groups:
            cases = [each.partition(IN_CASE)[2] for each in group.tests if IN_CASE in each]
            others = [each for each in group.tests if IN_CASE not in each]
            engine = f"[{verdict.title}]({name}/verdict.md)"
            yield line(engine, group.title, _names(cases), _names(others))


def _verdicts(folder: Path) -> Iterator[tuple[str, EngineVerdict]]:
    """Yields the folder and the verdict of each judgement that was not stopped."""
    for path in sorted(folder.glob("*/verdict.json")):
        verdict = VERDICT.read(path)
        if verdict.is_complete:
            yield path.parent.name, verdict


def _names(names: list[str]) -> str:
    """Returns how many there are, and the first of them."""
    more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    return ", ".join(f"`{each}`" for each in names[:NUM_NAMED]) + more or "none"
