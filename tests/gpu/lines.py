"""The lines of `measures.jsonl`. One that cannot be read, as a kill may leave it, costs no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def readable(path: Path) -> list[dict[str, Any]]:
    """Returns the lines that are objects with a section, and prints how many are not."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [each for each in map(_parsed, lines) if each is not None]
    if len(found) < len(lines):
        num_bad = len(lines) - len(found)
        print(f"{path.name}: {num_bad} of {len(lines)} lines cannot be read, and are left out")
    return found


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "section" in found else None
