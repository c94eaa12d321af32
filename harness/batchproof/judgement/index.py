"""All verdicts of a folder as one table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from batchproof.records.file_kinds import replace_text
from batchproof.records.markdown import header, line
from batchproof.records.verdict import VERDICT

HEAD = """# Released engines before the suite

Each line is the verdict on one released engine. Its folder holds the page, the same as `verdict.json`,
and the failure files that the page names. `findings.yaml` holds what is known of the failures, and
`reproductions/` scripts that show them with the library alone.
"""


def write_index(folder: Path) -> Path:
    """Writes the table of all verdicts into the folder and returns its path."""
    path = folder / "README.md"
    replace_text(path, "\n".join([HEAD, *index_table(folder), ""]))
    return path


def index_table(folder: Path, prefix: str = "") -> Iterator[str]:
    """Yields the table in Markdown. `prefix` begins the links. Verdicts that were stopped are left
    out.
    """
    yield from header(
        "engine", "judged", "answers", "held", "broken", "differs by documented convention"
    )
    for path in sorted(folder.glob("*/verdict.json")):
        verdict = VERDICT.read(path)
        if verdict.is_complete:
            yield line(
                f"[{verdict.title}]({prefix}{path.parent.name}/verdict.md)",
                verdict.made.date[:10],
                f"{verdict.totals.num_requests:,}",
                str(len(verdict.held)),
                ", ".join(verdict.broken) or "none",
                ", ".join(verdict.differing) or "none",
            )
