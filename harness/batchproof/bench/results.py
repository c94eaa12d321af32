"""Writes a result file: raw rounds and the figures made of them, as one JSON object.

The file is rewritten as a whole after each addition, through a temporary file that replaces it, so
it is valid JSON at any moment. Only `finish` adds the footer: without it the run was stopped.
`reading.py` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from batchproof.bench.reading import SCHEMA, Document, is_complete
from batchproof.records.file_kinds import replace_text

__all__ = ["SCHEMA", "ResultFile"]


class ResultFile:
    """A result file that grows. Nothing is written before `write`: a run that fails to start leaves an
    older file as it is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._result: Document = {"schema": SCHEMA}

    def write(self, header: Mapping[str, object]) -> None:
        """Writes the file without entries. Raises `UsageError` if it cannot be written."""
        self._result |= {"header": dict(header), "comparisons": [], "growth": [], "load": []}
        self._save()

    def add_comparison(self, comparison: Mapping[str, object]) -> None:
        """Appends a comparison and writes the file. Raises `ValueError` for NaN or infinity."""
        self._add("comparisons", comparison)

    def add_growth(self, growth: Mapping[str, object]) -> None:
        """Appends an entry of cost growth. Raises as `add_comparison` does."""
        self._add("growth", growth)

    def add_load(self, load: Mapping[str, object]) -> None:
        """Appends an engine's entry of a load sweep. Raises as `add_comparison` does."""
        self._add("load", load)

    def finish(self) -> None:
        """Adds the footer; a second call changes nothing."""
        assert "header" in self._result, "`write` comes before `finish`"
        if is_complete(self._result):
            return
        self._result["footer"] = {
            "finished": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "num_comparisons": len(self._result["comparisons"]),
            "num_growth": len(self._result["growth"]),
            "num_load": len(self._result["load"]),
        }
        self._save()

    def _add(self, part: str, entry: Mapping[str, object]) -> None:
        assert part in self._result, "`write` comes before the first addition"
        assert not is_complete(self._result), "nothing is added after `finish`"
        content = json.loads(json.dumps(entry, allow_nan=False))  # a copy: later changes do not count
        self._result[part].append(content)
        self._save()

    def _save(self) -> None:
        """Replaces the file in one step."""
        parts = ",\n".join(f'"{key}": {_lines(value)}' for key, value in self._result.items())
        replace_text(self._path, f"{{\n{parts}\n}}\n")


def _lines(value: object) -> str:
    """Returns JSON with one line for each entry of a list, so that a diff shows what changed."""
    if not isinstance(value, list):
        return json.dumps(value, allow_nan=False)
    return "[" + ",".join(f"\n{json.dumps(each, allow_nan=False)}" for each in value) + "]"
