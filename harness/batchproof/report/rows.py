"""One engine's row of a comparison, as figures and tables need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeAlias

from batchproof.bench.reading import INVALID

Data: TypeAlias = Mapping[str, Any]  # a part of a document: figures by name


@dataclass(frozen=True, slots=True)
class Throughput:
    """Output tokens per second: of the median round, of the slowest and of the fastest, and what the
    hardware allows (None: not known)."""

    typical: float
    low: float
    high: float
    roofline: float | None


def is_shown(row: Data) -> bool:
    """No figure of an engine that answered wrongly is shown anywhere."""
    return row["verdict"] != INVALID and row["metrics"] is not None


def throughput(row: Data, clock: str) -> Throughput | None:
    if not is_shown(row) or not row["rounds"]:
        return None
    seconds = [each[f"{clock}_s"] for each in row["rounds"]]
    num_tokens = row["metrics"].get("num_output_tokens")
    if not num_tokens or min(seconds) <= 0:
        return None
    typical = num_tokens / median(seconds)
    share = (schedule(row).get("roofline") or {}).get("share")
    return Throughput(
        typical,
        num_tokens / max(seconds),
        num_tokens / min(seconds),
        typical / share if share else None,
    )


def schedule(row: Data) -> Data:
    """Empty where the engine shows none."""
    return row.get("schedule") or {}


def facing(rows: Sequence[Data]) -> list[Data]:
    """Static against continuous: the shown engines of equal slots whose timelines can be laid side by
    side, those with barriers first. An engine of one slot waits for nobody, so it says nothing here."""
    candidates = [row for row in rows if is_shown(row) and schedule(row).get("timeline")]
    by_slots: dict[int, list[Data]] = {}
    for row in candidates:
        by_slots.setdefault(schedule(row)["timeline"]["num_slots"], []).append(row)
    by_slots.pop(1, None)
    most = max(by_slots.values(), key=len, default=[])
    return sorted(most, key=lambda row: not schedule(row)["timeline"]["barriers"])
