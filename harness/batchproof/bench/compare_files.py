"""`python -m batchproof compare A B`: is B slower than A, on rows that measure the same thing?

Exit codes: 0 nothing is slower than allowed; 1 a row is slower by more than `--fail-over` or no longer
VALID; 2 nothing can be compared.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from batchproof.bench.ratios import Ratio, unpaired_ratio
from batchproof.errors import UsageError
from batchproof.records.benchmark import INVALID, VALID, is_complete, load

DEVICE = ("type", "name", "driver", "threads")
MACHINE = ("cpu", "cores")
Result = Mapping[str, Any]


class RowKey(NamedTuple):
    """What two rows must have in common to be compared."""

    workload: str
    model: str
    dtype: str
    clock: str
    workload_hash: str  # two workloads of one name may differ
    engine: str
    interface: str

    @property
    def place(self) -> Self:
        """The key of the whole comparison."""
        return self._replace(engine="", interface="")

    @property
    def title(self) -> str:
        return f"{self.workload}, {self.model} {self.dtype}, {self.clock} time"

    @property
    def label(self) -> str:
        return self.engine if self.interface == "stepping" else f"{self.engine} ({self.interface})"

    def __str__(self) -> str:
        return f"{self.title}: {self.label}"


@dataclass(frozen=True)
class RowPair:
    """The same row before (in A) and after (in B). `limit`: the share of throughput that may be
    lost; None: any."""

    key: RowKey
    before: Result
    after: Result
    limit: float | None

    @cached_property
    def obstacle(self) -> str | None:
        """Why the rows are not compared; None if they are."""
        for letter, row in (("A", self.before), ("B", self.after)):
            if row["verdict"] != VALID:
                reason = " ".join((row.get("reason") or "no reason is given").split())
                return f"{row['verdict']} in {letter}: {reason}"
            if not self._times(row) or min(self._times(row)) <= 0:
                return f"{letter} has no {self.key.clock} times of it"
        return None

    @cached_property
    def ratio(self) -> Ratio:
        """The throughput of B over that of A. The workload is the same, so the ratio of times gives
        it."""
        return unpaired_ratio(self._times(self.before), self._times(self.after))

    def _times(self, row: Result) -> list[float]:
        return [each[f"{self.key.clock}_s"] for each in row["rounds"]]

    @property
    def is_lost(self) -> bool:
        """Whether the row is VALID in A and, in B, INVALID or, where a limit is set, without a figure:
        no gate may pass what was not measured."""
        is_gone = self.after["verdict"] == INVALID
        is_gone |= self.limit is not None and self.after["verdict"] != VALID
        return self.before["verdict"] == VALID and is_gone

    @property
    def is_too_slow(self) -> bool:
        """Whether B lost more than the limit. The ratio decides; its interval only says how certain it
        is."""
        return self.limit is not None and not self.obstacle and self.ratio.ratio < 1 - self.limit

    def __str__(self) -> str:
        if self.obstacle is not None:
            return f"{'FAILED' if self.is_lost else 'not compared'}, {self.obstacle}"
        ratio = self.ratio
        change = f"{'slower' if ratio.ratio < 1 else 'faster'} by {abs(ratio.ratio - 1):.1%}"
        if self.is_too_slow:
            doubt = "" if ratio.is_different else ", though its interval does not exclude 1"
            return f"{ratio.figures()}  FAILED, {change}{doubt}"
        return f"{ratio.figures()}  {change if ratio.is_different else 'no difference shown'}"


Rows = Mapping[RowKey, Result]


def rows_of(result: Result) -> Rows:
    """Returns the rows of a file by their keys; of equal keys the later one counts."""
    found: dict[RowKey, Result] = {}
    for comparison in result["comparisons"]:
        workload, model = comparison["workload"], comparison["model"]
        place = (workload["name"], model["name"], model["dtype"], comparison["clock"], workload["hash"])
        found |= {RowKey(*place, row["engine"], row["interface"]): row for row in comparison["rows"]}
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, metavar="A", help="the result file before a change")
    parser.add_argument("after", type=Path, metavar="B", help="the result file after it")
    parser.add_argument(
        "--fail-over",
        type=_percent,
        metavar="P%",
        help="exit with 1 if a row lost more than this of its throughput, as 5%% (default: only show)",
    )


def _percent(value: str) -> float:
    """Returns a share of 1 for `5%`, `5 %` or `5`."""
    try:
        number = float(value.strip().removesuffix("%"))
    except ValueError:
        number = math.nan
    if not 0 <= number < 100:
        raise argparse.ArgumentTypeError(
            f"{value!r} must be a percentage from 0% to less than 100%, such as 5%"
        )
    return number / 100


def run(arguments: argparse.Namespace) -> int:
    """Prints the comparison and returns the exit code. Raises `UsageError` for files that cannot be
    compared."""
    results = load(arguments.before), load(arguments.after)
    a, b = map(rows_of, results)
    pairs = _matched_rows(a, b, arguments.fail_over)
    for warning in _warnings(*results):
        print(f"warning: {warning}", file=sys.stderr)
    for letter, path, result in zip("AB", (arguments.before, arguments.after), results, strict=True):
        made = result["header"]["made"]
        print(f"{letter}  {path}")
        print(f"   {made.get('date', 'undated')}, commit {made.get('commit', 'unknown')}")
    print("\nThroughput of B over A, with 95 % intervals; above 1, B is faster")
    for line in (*_sections(pairs), *_unmatched("A", a, b), *_unmatched("B", b, a), ""):
        print(line)
    # An engine of A whose comparison B repeats without it: no gate may pass that.
    places = {key.place for key in b} if arguments.fail_over is not None else set()
    missing = [key for key in a if key not in b and key.place in places]
    for line in _summary(pairs, missing, arguments.fail_over):
        print(line)
    failed = any(each.is_lost or each.is_too_slow for each in pairs)
    return 1 if missing or failed else 0


def _matched_rows(a: Rows, b: Rows, limit: float | None) -> list[RowPair]:
    """Returns the pairs in the order of A. Raises `UsageError` if workloads of one name differ, or if
    no row can be compared."""
    _refuse_unlike(a, b)
    pairs = [RowPair(key, row, b[key], limit) for key, row in a.items() if key in b]
    if not pairs:
        raise UsageError(
            f"there is nothing to compare: A has {_contents(a)}; B has {_contents(b)}; but rows are "
            f"matched by workload, model, dtype, clock, engine and interface"
        )
    if not any(each.obstacle is None or each.is_lost for each in pairs):
        raise UsageError(
            f"there is nothing to compare: no row is VALID in both A and B, the first being "
            f"{pairs[0].key}, {pairs[0].obstacle}"
        )
    return pairs


def _contents(rows: Rows) -> str:
    return " and ".join(map(str, rows)) or "no rows"


def _refuse_unlike(a: Rows, b: Rows) -> None:
    """Workloads of one name must be equal, unless the files share another one of that name."""
    hashes: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
    for number, rows in enumerate((a, b)):
        for key in rows:
            hashes.setdefault(key[:3], ([], []))[number].append(key.workload_hash)
    for (workload, model, dtype), (ours, theirs) in hashes.items():
        if ours and theirs and set(ours).isdisjoint(theirs):
            raise UsageError(
                f"the workload {workload!r} of {model} {dtype} is not the same: its hash is "
                f"{', '.join(dict.fromkeys(ours))} in A, {', '.join(dict.fromkeys(theirs))} in B"
            )


def _warnings(a: Result, b: Result) -> Iterator[str]:
    """Yields what makes a comparison of speeds doubtful: incomplete runs, and machines or versions
    that differ."""
    for letter, result in (("A", a), ("B", b)):
        if not is_complete(result):
            yield f"{letter} is not complete: its run was stopped, or goes on"
    versions = [each["header"]["made"]["versions"] for each in (a, b)]
    for what, pair in {"machines": (_machine(a), _machine(b)), "versions": versions}.items():
        if unlike := _differences(*pair):
            yield f"the {what} differ: {', '.join(unlike)}"


def _machine(result: Result) -> dict[str, Any]:
    made, device = result["header"]["made"], result["header"]["device"]
    machine = {key: made["machine"].get(key) for key in MACHINE}
    return machine | {f"device {key}" if key != "threads" else key: device.get(key) for key in DEVICE}


def _differences(a: Result, b: Result) -> list[str]:
    shown = [{k: "not set" if v is None else v for k, v in each.items()} for each in (a, b)]
    return [
        f"{key} is {shown[0].get(key, 'not set')} in A, {shown[1].get(key, 'not set')} in B"
        for key in {**a, **b}
        if a.get(key) != b.get(key)
    ]


def _sections(pairs: Sequence[RowPair]) -> Iterator[str]:
    width = max(len(each.key.label) for each in pairs)
    for place in dict.fromkeys(each.key.place for each in pairs):
        yield from ("", place.title)
        yield from (f"  {p.key.label:{width}}  {p}" for p in pairs if p.key.place == place)


def _unmatched(letter: str, rows: Rows, others: Rows) -> Iterator[str]:
    keys = [key for key in rows if key not in others]
    if keys:
        yield from ("", f"Only in {letter}", *(f"  {key}" for key in keys))


def _summary(
    pairs: Sequence[RowPair], missing: Iterable[RowKey], fail_over: float | None
) -> Iterator[str]:
    yield f"{sum(each.obstacle is None for each in pairs)} of {len(pairs)} rows compared"
    if num_lost := sum(each.is_lost for each in pairs):
        yield f"FAILED: {num_lost} VALID in A and not in B"
    if fail_over is not None:
        num_slower = sum(each.is_too_slow for each in pairs)
        verdict = f"FAILED: {num_slower}" if num_slower else "none"
        yield f"{verdict} slower by more than {fail_over * 100:g}%"
    yield from (f"FAILED: {key} is in A, and B has its workload without it" for key in missing)
