"""Reading a result file: whatever is wrong with it is said in a sentence that names the file.

What readers rely on is in `batchproof.records.benchmark`, and is checked when a file is loaded. Tables
and pictures print figures by their names, so they are given the whole document.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from batchproof.records.benchmark import BENCHMARK, INVALID, UNVERIFIED, VALID
from batchproof.records.file_kinds import parsed

__all__ = ["INVALID", "SCHEMA", "UNVERIFIED", "VALID", "Document", "clock_of", "is_complete", "load"]

SCHEMA = BENCHMARK.schema
Document: TypeAlias = dict[str, Any]  # a result file as it was written: figures by name


def load(path: Path | str) -> Document:
    """A result as it was written. Raises `UsageError` if it is not there, is none, or is damaged."""
    return checked(Path(path), parsed(Path(path)))


def checked(path: Path, document: object) -> Document:
    """What `parsed` has read, if it is a result. Raises `UsageError` as `load` does."""
    BENCHMARK.of(path, document)
    return cast(Document, document)


def is_complete(result: Mapping[str, Any]) -> bool:
    """Without a footer the run was stopped, and what it had is there."""
    return "footer" in result


def clock_of(result: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """`process` or `wall`: the clock of the ratios of this comparison. Where it names none: a workload
    with arrivals is on the wall clock in a file whose other comparisons are on process time, even if
    too few of its rows are VALID for a ratio."""
    if "clock" in comparison:
        return str(comparison["clock"])
    clocks = {each["clock"] for each in comparison["ratios"]}
    if len(clocks) == 1:
        return str(clocks.pop())
    has_arrivals = comparison["workload"]["spec"].get("arrival_rate") is not None
    return "wall" if has_arrivals else str(result["header"]["clock"])
