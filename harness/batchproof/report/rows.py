"""One engine's row of a comparison, as figures and tables need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeAlias

from batchproof.bench.reading import INVALID

Data: TypeAlias = Mapping[str, Any]  # a document, or a part of it: figures by name


@dataclass(frozen=True, slots=True)
class Throughput:
    """Output tokens per second: median, slowest and fastest round, and what the hardware allows
    (None: unknown).
    """

    typical: float
    low: float
    high: float
    roofline: float | None


def is_shown(row: Data) -> bool:
    """Returns whether figures of the engine may be shown: none are if it answered wrongly."""
    return row["verdict"] != INVALID and row["metrics"] is not None


def throughput(row: Data, clock: str) -> Throughput | None:
    """Returns the throughput by a clock, or None if there are no figures."""
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
    """Returns the schedule; empty if the engine shows none."""
    return row.get("schedule") or {}


def facing(rows: Sequence[Data]) -> list[Data]:
    """Returns static and continuous engines of equal slots whose timelines can be compared side by
    side, those with barriers first. An engine of one slot has no neighbours to wait for, so it is
    left out.
    """
    candidates = [row for row in rows if is_shown(row) and schedule(row).get("timeline")]
    by_slots: dict[int, list[Data]] = {}
    for row in candidates:
        by_slots.setdefault(schedule(row)["timeline"]["num_slots"], []).append(row)
    by_slots.pop(1, None)
    most = max(by_slots.values(), key=len, default=[])
    return sorted(most, key=lambda row: not schedule(row)["timeline"]["barriers"])
