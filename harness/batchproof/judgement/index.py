"""All verdicts of a folder as one table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from batchproof.campaign.markdown import header, line

HEAD = """# Engines on trial

Each line is the verdict on one released engine, with its page. `findings.yaml` holds what is known of
their failures; `reproductions/` and the folders hold scripts that show them without the suite.
"""


def write_index(folder: Path) -> Path:
    path = folder / "README.md"
    path.write_text("\n".join([HEAD, *index_table(folder), ""]), encoding="utf-8")
    return path


def index_table(folder: Path, prefix: str = "") -> Iterator[str]:
    """In Markdown; `prefix`: of the links. Verdicts that were stopped are left out."""
    yield from header(
        "engine", "judged", "answers", "held", "broken", "differs by documented convention"
    )
    for path in sorted(folder.glob("*.json")):
        verdict: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if verdict["is_complete"]:
            yield line(
                f"[{verdict['title']}]({prefix}{path.stem}.md)",
                verdict["made"]["date"][:10],
                f"{verdict['totals'].get('num_requests', 0):,}",
                str(len(verdict["held"])),
                ", ".join(verdict["broken"]) or "none",
                ", ".join(verdict["differing"]) or "none",
            )
