"""Puts new rows into an existing kill table, so that one fault does not cost the time of the whole
table.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.records.kills import KILL_TABLE, FunctionRow, KillTableRecord, KillUpdate
from batchproof_lab.kill_table import KillTable, diagnosis


def whole_table(path: Path, asked: KillTable) -> KillTableRecord:
    """Returns the existing table. Raises `UsageError` if there is no complete table of the same
    models and seeds.
    """
    if not path.is_file():
        raise UsageError(f"--update needs the table {str(path)!r}, which is not there: make it first")
    table = KILL_TABLE.read(path)
    agrees = {
        "models": (table.models, tuple(asked.models)),
        "seeds": (table.seeds, tuple(asked.seeds)),
        "is_complete": (table.is_complete, True),
        "is_full": (table.is_full, True),
    }
    for key, (found, wanted) in agrees.items():
        if found != wanted:
            raise UsageError(
                f"--update: {str(path)!r} has {key} {found!r}, but this run has {wanted!r}"
            )
    return table


def updated(whole: KillTableRecord, fresh: KillTableRecord) -> KillTableRecord:
    """Returns the whole table with the fresh rows in place of its own, and a note of when they were
    made.
    """
    rows = {**whole.faults, **fresh.faults}
    tests = {
        function: FunctionRow(
            row.is_generated, (*_others(whole.tests.get(function, row), fresh.faults), *row.faults)
        )
        for function, row in fresh.tests.items()
    }
    note = KillUpdate(tuple(sorted(fresh.faults)), fresh.made)
    return replace(
        whole,
        faults=rows,
        tests=tests,
        diagnosis=diagnosis(rows.values()),
        updates=(*whole.updates, note),
    )


def still_busy(whole: KillTableRecord, renewed: Collection[str]) -> frozenset[str]:
    """Returns the test functions that catch a fault whose row stays."""
    return frozenset(name for name, row in whole.tests.items() if _others(row, renewed))


def _others(row: FunctionRow, renewed: Collection[str]) -> list[str]:
    return [name for name in row.faults if name not in renewed]
