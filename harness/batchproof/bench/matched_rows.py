"""Pairs the rows of two result files that measure the same thing, and says what prevents comparing
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from batchproof.bench.ratios import Ratio, unpaired_ratio
from batchproof.bench.reading import INVALID, VALID, clock_of, is_complete
from batchproof.errors import UsageError

DEVICE = ("type", "name", "driver", "threads")
MACHINE = ("cpu", "cores")
Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ComparisonKey:
    """What two comparisons must have in common to be compared."""

    workload: str
    workload_hash: str
    model: str
    dtype: str
    clock: str

    def __str__(self) -> str:
        return f"{self.workload}, {self.model} {self.dtype}, {self.clock} time"


@dataclass(frozen=True, slots=True)
class RowKey:
    """What two rows must have in common to be compared."""

    place: ComparisonKey
    engine: str
    interface: str

    @property
    def label(self) -> str:
        """The engine, and its interface unless that is stepping."""
        return self.engine if self.interface == "stepping" else f"{self.engine} ({self.interface})"


@dataclass(frozen=True)
class RowPair:
    """The same row before (in A) and after (in B)."""

    key: RowKey
    before: Result
    after: Result

    @property
    def has_become_invalid(self) -> bool:
        """Whether the row is VALID in A and INVALID in B."""
        return self.before["verdict"] == VALID and self.after["verdict"] == INVALID

    @cached_property
    def obstacle(self) -> str | None:
        """Why the rows are not compared; None if they are."""
        for letter, row in (("A", self.before), ("B", self.after)):
            if row["verdict"] != VALID:
                reason = " ".join((row.get("reason") or "no reason is given").split())
                return f"{row['verdict']} in {letter}: {reason}"
            if not self._times(row) or min(self._times(row)) <= 0:
                return f"{letter} has no {self.key.place.clock} times of it"
        return None

    @cached_property
    def ratio(self) -> Ratio:
        """The throughput of B over that of A. The workload is the same, so the ratio of times gives
        it."""
        return unpaired_ratio(self._times(self.before), self._times(self.after))

    def _times(self, row: Result) -> list[float]:
        return [each[f"{self.key.place.clock}_s"] for each in row["rounds"]]


@dataclass(frozen=True, slots=True)
class ResultIndex:
    """The comparisons, rows and ratios of one file by their keys; of equal keys the later one
    counts."""

    comparisons: Mapping[ComparisonKey, Result]
    rows: Mapping[RowKey, Result]
    ratios: Mapping[tuple[ComparisonKey, str, str], Ratio]

    def ratio(self, place: ComparisonKey, engine: str, over: str) -> Ratio | None:
        """Returns the ratio of two engines, inverted if the file has it the other way round."""
        turned = self.ratios.get((place, over, engine))
        return self.ratios.get((place, engine, over), turned and turned.inverse)


def index_result(result: Result) -> ResultIndex:
    """Returns the index of a result."""
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
    return ResultIndex(dict(places), rows, ratios)


def _place(result: Result, comparison: Result) -> ComparisonKey:
    workload, model = comparison["workload"], comparison["model"]
    clock = clock_of(result, comparison)
    return ComparisonKey(workload["name"], workload["hash"], model["name"], model["dtype"], clock)


def matched(a: ResultIndex, b: ResultIndex) -> list[RowPair]:
    """Returns the pairs in the order of A. Raises `UsageError` if workloads of one name differ, or if
    no row can be compared."""
    _refuse_unlike(a, b)
    pairs = [RowPair(key, row, b.rows[key]) for key, row in a.rows.items() if key in b.rows]
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


def _contents(file: ResultIndex) -> str:
    places = named(file.rows)
    rest = f" and {len(places) - 2} more" if len(places) > 2 else ""
    return " and ".join(places[:2]) + rest if places else "no rows"


def named(keys: Iterable[RowKey]) -> list[str]:
    """Returns one text for each comparison: `bimodal, tiny float32, process time: static, ragged`."""
    labels: dict[ComparisonKey, list[str]] = {}
    for key in keys:
        labels.setdefault(key.place, []).append(key.label)
    return [f"{place}: {', '.join(each)}" for place, each in labels.items()]


def _refuse_unlike(a: ResultIndex, b: ResultIndex) -> None:
    """Workloads of one name must be equal, unless the files share another one of that name."""
    for place, comparison in a.comparisons.items():
        ours, theirs = (
            [other for other in file.comparisons if _named(place, other)] for file in (a, b)
        )
        shared = {each.workload_hash for each in ours} & {each.workload_hash for each in theirs}
        if theirs and not shared:
            other = b.comparisons[theirs[0]]
            raise UsageError(
                f"the workload {place.workload!r} of {place.model} {place.dtype} is not the same: "
                f"{_difference(comparison['workload'], other['workload'])}"
            )


def _named(one: ComparisonKey, other: ComparisonKey) -> bool:
    """Whether both have the same workload name on the same model, whatever hash and clock."""
    return replace(one, workload_hash="", clock="") == replace(other, workload_hash="", clock="")


def warnings_about(a: Result, b: Result) -> list[str]:
    """Returns warnings for a comparison of speeds: incomplete runs, and machines or versions that
    differ."""
    warnings = [
        f"{letter} is not complete: its run was stopped, or goes on"
        for letter, result in (("A", a), ("B", b))
        if not is_complete(result)
    ]
    machines = _machine(a), _machine(b)
    versions = a["header"]["made"]["versions"], b["header"]["made"]["versions"]
    for what, (one, other) in {"machines": machines, "versions": versions}.items():
        if unlike := _unlike(one, other):
            warnings.append(f"the {what} differ: {', '.join(unlike)}")
    return warnings


def _difference(a: Result, b: Result) -> str:
    """Returns the totals of two workloads, and how their specs differ."""
    totals = [_totals(a), _totals(b)]
    same = f"{totals[0]} in both" if totals[0] == totals[1] else f"{totals[0]} in A, {totals[1]} in B"
    unlike = _unlike(a["spec"], b["spec"])
    return f"{same}; {', '.join(unlike) or 'the spec is the same, but gives other requests'}"


def _totals(workload: Result) -> str:
    return ", ".join(f"{key} {total}" for key, total in workload["totals"].items())


def _machine(result: Result) -> dict[str, Any]:
    made, device = result["header"]["made"], result["header"]["device"]
    machine = {key: made["machine"].get(key) for key in MACHINE}
    return machine | {f"device {key}" if key != "threads" else key: device.get(key) for key in DEVICE}


def _unlike(a: Result, b: Result) -> list[str]:
    return [
        f"{key} is {_shown(a.get(key))} in A, {_shown(b.get(key))} in B"
        for key in {**a, **b}
        if a.get(key) != b.get(key)
    ]


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)
