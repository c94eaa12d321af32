"""Reads result files; every error is one sentence that names the file.

Fields that readers rely on are in `batchproof.records.benchmark` and are checked when a file is
loaded. Tables and pictures print figures by their names, so they get the whole document.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from batchproof.records.benchmark import BENCHMARK, INVALID, UNVERIFIED, VALID
from batchproof.records.file_kinds import parsed

__all__ = [
    "INVALID",
    "SCHEMA",
    "UNVERIFIED",
    "VALID",
    "Document",
    "clock_of",
    "exceeds_slots",
    "is_complete",
    "load",
]

SCHEMA = BENCHMARK.schema
Document: TypeAlias = dict[str, Any]  # a result file as it was written: figures by name


def load(path: Path | str) -> Document:
    """Returns the result in a file. Raises `UsageError` if it does not exist, is no result, or is
    damaged."""
    path = Path(path)
    document = parsed(path)
    BENCHMARK.of(path, document)
    return cast(Document, document)


def is_complete(result: Mapping[str, Any]) -> bool:
    """Returns whether the file has a footer; without one the run was stopped early."""
    return "footer" in result


def exceeds_slots(row: Mapping[str, Any], slots: int) -> bool:
    """Returns whether more requests were served at once than the workload has slots. False for a row
    of an engine that was not stepped, which does not show it, and of an older file."""
    return (row.get("num_at_once") or 0) > slots


def clock_of(result: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """Returns "process" or "wall", the clock of the ratios of this comparison.

    Where the comparison names none, a workload with arrivals is on the wall clock in a file whose
    other comparisons are on process time, even if too few of its rows are VALID for a ratio.
    """
    if "clock" in comparison:
        return str(comparison["clock"])
    clocks = {each["clock"] for each in comparison["ratios"]}
    if len(clocks) == 1:
        return str(clocks.pop())
    has_arrivals = comparison["workload"]["spec"].get("arrival_rate") is not None
    return "wall" if has_arrivals else str(result["header"]["clock"])
