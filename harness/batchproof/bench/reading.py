"""Reads result files; every error is one sentence that names the file.

Fields that readers rely on are in `batchproof.records.benchmark` and are checked when a file is
loaded. Tables and pictures print figures by their names, so they get the whole document.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from batchproof.records.benchmark import BENCHMARK, INVALID, UNVERIFIED, VALID
from batchproof.records.file_kinds import parsed

__all__ = ["INVALID", "UNVERIFIED", "VALID", "Document", "exceeds_slots", "is_complete", "load"]

Document: TypeAlias = dict[str, Any]  # a result file as it was written: figures by name


def load(path: Path | str) -> Document:
    """Returns the result in a file. Raises `UsageError` if it does not exist, is no result, or is
    damaged."""
    path = Path(path)
    document = parsed(path)
    BENCHMARK.of(path, document)
    return cast(Document, document)


def is_complete(result: Mapping[str, Any]) -> bool:
    """Whether the file has a footer; without one the run was stopped early."""
    return "footer" in result


def exceeds_slots(row: Mapping[str, Any], slots: int) -> bool:
    """Whether more requests were served at once than the workload has slots. False for a row of an
    engine that was not stepped, which does not show it."""
    return (row.get("num_at_once") or 0) > slots
