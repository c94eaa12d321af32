"""New rows for a kill table that is there already: an hour's work is not made anew for one fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from batchproof.campaign.kill_table import SCHEMA_VERSION, KillTable, diagnosis
from batchproof.errors import UsageError


def whole_table(path: Path, asked: KillTable) -> dict[str, Any]:
    """Raises `UsageError` if there is no complete table of the same models and seeds."""
    if not path.is_file():
        raise UsageError(f"--update needs the table {str(path)!r}, which is not there: make it first")
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    wanted = {
        "schema_version": SCHEMA_VERSION,
        "models": list(asked.models),
        "seeds": list(asked.seeds),
        "is_complete": True,
        "is_full": True,
    }
    for key, value in wanted.items():
        if table.get(key) != value:
            raise UsageError(
                f"--update: {str(path)!r} has {key} {table.get(key)!r}, but this run has {value!r}"
            )
    return table


def updated(whole: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """The whole table with the fresh rows in place of its own, and a note of when they were made."""
    rows = whole["faults"] | fresh["faults"]
    renewed = set(fresh["faults"])
    tests = {
        function: {
            "is_generated": row["is_generated"],
            "faults": [
                name for name in whole["tests"].get(function, row)["faults"] if name not in renewed
            ]
            + row["faults"],
        }
        for function, row in fresh["tests"].items()
    }
    note = {"faults": sorted(renewed), "made": fresh["made"]}
    return whole | {
        "faults": rows,
        "tests": tests,
        "diagnosis": diagnosis(rows.values()),
        "updates": [*whole.get("updates", []), note],
    }
