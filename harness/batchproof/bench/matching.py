"""Which rows of two result files are of the same thing, and what speaks against comparing them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from batchproof.bench.likeness import difference
from batchproof.bench.ratios import Ratio, unpaired_ratio
from batchproof.bench.reading import INVALID, VALID, clock_of
from batchproof.errors import UsageError

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """A comparison as far as two of them are alike: equal places are compared."""

    workload: str
    workload_hash: str
    model: str
    dtype: str
    clock: str

    def __str__(self) -> str:
        return f"{self.workload}, {self.model} {self.dtype}, {self.clock} time"


@dataclass(frozen=True, slots=True)
class RowKey:
    place: Place
    engine: str
    interface: str

    @property
    def label(self) -> str:
        """Stepping goes without saying."""
        return self.engine if self.interface == "stepping" else f"{self.engine} ({self.interface})"


@dataclass(frozen=True)
class Pair:
    """The same row before (in A) and after (in B)."""

    key: RowKey
    before: Result
    after: Result

    @property
    def has_become_invalid(self) -> bool:
        return self.before["verdict"] == VALID and self.after["verdict"] == INVALID

    @cached_property
    def obstacle(self) -> str | None:
        """Why it is not compared."""
        for letter, row in (("A", self.before), ("B", self.after)):
            if row["verdict"] != VALID:
                reason = " ".join((row.get("reason") or "no reason is given").split())
                return f"{row['verdict']} in {letter}: {reason}"
            if not self._times(row) or min(self._times(row)) <= 0:
                return f"{letter} has no {self.key.place.clock} times of it"
        return None

    @cached_property
    def ratio(self) -> Ratio:
        """Throughput of B over that of A. The workload is the same, so times tell it."""
        return unpaired_ratio(self._times(self.before), self._times(self.after))

    def _times(self, row: Result) -> list[float]:
        return [each[f"{self.key.place.clock}_s"] for each in row["rounds"]]


@dataclass(frozen=True, slots=True)
class Indexed:
    """One file by what its rows and ratios are of; of two of a kind the later one counts."""

    comparisons: Mapping[Place, Result]
    rows: Mapping[RowKey, Result]
    ratios: Mapping[tuple[Place, str, str], Ratio]

    def ratio(self, place: Place, engine: str, over: str) -> Ratio | None:
        """Also where the engines were named in the other order."""
        turned = self.ratios.get((place, over, engine))
        return self.ratios.get((place, engine, over), turned and turned.inverse)


def indexed(result: Result) -> Indexed:
    places = [(_place(result, each), each) for each in result["comparisons"]]
    rows = {
        RowKey(place, row["engine"], row["interface"]): row
        for place, comparison in places
        for row in comparison["rows"]
    }
    ratios = {
        (place, each["engine"], each["over"]): Ratio.of(each)
        for place, comparison in places
        for each in comparison["ratios"]
    }
    return Indexed(dict(places), rows, ratios)


def _place(result: Result, comparison: Result) -> Place:
    workload, model = comparison["workload"], comparison["model"]
    clock = clock_of(result, comparison)
    return Place(workload["name"], workload["hash"], model["name"], model["dtype"], clock)


def matched(a: Indexed, b: Indexed) -> list[Pair]:
    """In the order of A. Raises `UsageError` if workloads are unlike, or no row has its like."""
    _refuse_unlike(a, b)
    pairs = [Pair(key, row, b.rows[key]) for key, row in a.rows.items() if key in b.rows]
    if not pairs:
        raise UsageError(
            f"there is nothing to compare: A has {_contents(a)}; B has {_contents(b)}; but rows are "
            f"matched by workload, model, dtype, clock, engine and interface"
        )
    if not any(each.obstacle is None or each.has_become_invalid for each in pairs):
        first = pairs[0]
        raise UsageError(
            f"there is nothing to compare: no row is VALID in both A and B, the first being "
            f"{named([first.key])[0]}, {first.obstacle}"
        )
    return pairs


def _contents(file: Indexed) -> str:
    places = named(file.rows)
    rest = f" and {len(places) - 2} more" if len(places) > 2 else ""
    return " and ".join(places[:2]) + rest if places else "no rows"


def named(keys: Iterable[RowKey]) -> list[str]:
    """`bimodal, tiny float32, process time: static, ragged` for each place."""
    labels: dict[Place, list[str]] = {}
    for key in keys:
        labels.setdefault(key.place, []).append(key.label)
    return [f"{place}: {', '.join(each)}" for place, each in labels.items()]


def _refuse_unlike(a: Indexed, b: Indexed) -> None:
    """Workloads of one name must be the same, unless the files share another one of that name."""
    for place, comparison in a.comparisons.items():
        ours, theirs = (
            [other for other in file.comparisons if _named(place, other)] for file in (a, b)
        )
        shared = {each.workload_hash for each in ours} & {each.workload_hash for each in theirs}
        if theirs and not shared:
            other = b.comparisons[theirs[0]]
            raise UsageError(
                f"the workload {place.workload!r} of {place.model} {place.dtype} is not the same: "
                f"{difference(comparison['workload'], other['workload'])}"
            )


def _named(one: Place, other: Place) -> bool:
    """The same name on the same model, whatever its hash and clock."""
    return replace(one, workload_hash="", clock="") == replace(other, workload_hash="", clock="")
