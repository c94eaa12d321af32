"""What the lines of a journal add up to."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.plugin.repro import MARK
from harness.plugin.table import Record, cell, counts, totals
from harness.promises import Promise
from harness.provenance import ROOT

NUM_REPEATS = 2  # of a reproduction
REPEAT_LIMIT_S = 300
UNSAID = "?"  # a failure that names no promise: the process ended, or the harness itself failed


@dataclass(frozen=True, slots=True)
class Fault:
    """All failures of one test function that broke the same promise; the first is told."""

    promise: str
    function: str
    told: str
    tests: tuple[str, ...]
    script: Path | None = None
    repeats: tuple[str, ...] = ()  # what became of each run of the script

    @property
    def title(self) -> str:
        return self.told.splitlines()[0]


@dataclass(frozen=True)
class Verdict:
    """Of one engine."""

    engine: str
    release: str | None  # the engine's name and version in its own words
    records: list[Record]
    skips: Counter[str]  # reason -> tests
    faults: list[Fault] = field(default_factory=list)
    is_complete: bool = True

    @cached_property
    def cells(self) -> dict[str, tuple[str, Counter[str]]]:
        """Promise id -> how it reads, and what is in it; in the order of the promises."""
        found = counts(self.engine, self.records)
        return {p.id: (cell(found[p.id]), found[p.id]) for p in Promise if p.id in found}

    @property
    def held(self) -> list[str]:
        return [p for p, (_, c) in self.cells.items() if c["passed"] and not c["failed"]]

    @property
    def broken(self) -> list[str]:
        return [p for p, (_, c) in self.cells.items() if c["failed"]]

    @property
    def untested(self) -> list[str]:
        return [p.id for p in Promise if p.id not in (*self.held, *self.broken)]

    @property
    def totals(self) -> Counter[str]:
        return totals(self.engine, self.records)


def verdict_of(engine: str, entries: Iterable[dict[str, Any]], is_complete: bool) -> Verdict:
    """Runs nothing."""
    entries = list(entries)
    records = [(each["outcome"], each["record"]) for each in entries if "record" in each]
    skips = Counter(each["told"] for each in entries if each["outcome"] == "skipped")
    releases = (record.get("ledger", {}).get("release") for _, record in records)
    release = next(filter(None, releases), None)
    return Verdict(engine, release, records, skips, list(_faults(entries)), is_complete)


def _faults(entries: Iterable[dict[str, Any]]) -> Iterator[Fault]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in entries:
        if each["outcome"] == "failed":
            promise = each.get("record", {}).get("broken", UNSAID)
            groups.setdefault((promise, _function(each["test"])), []).append(each)
    for (promise, function), group in sorted(groups.items(), key=_in_order):
        told, _, script = group[0]["told"].partition(MARK)
        path = Path(script.strip()) if script.strip().endswith(".py") else None
        yield Fault(promise, function, told, tuple(each["test"] for each in group), path)


def _in_order(item: tuple[tuple[str, str], object]) -> tuple[int, str]:
    (promise, function), _ = item
    ids = [each.id for each in Promise]
    return (ids.index(promise) if promise in ids else len(ids), function)


def _function(test: str) -> str:
    """The test function; of a curated case its name as well."""
    name, _, parameters = test.partition("::")[2].partition("[")
    case = re.search(r"-(?:random|hash|window)-(.+)\]$", f"[{parameters}") if parameters else None
    return f"{name}, case {case[1]}" if case and name.startswith("test_curated") else name


def repeated(fault: Fault) -> tuple[str, ...]:
    """Runs the fault's script, twice, each time in a process of its own."""
    if fault.script is None:
        return ()
    return tuple(_run(fault.script) for _ in range(NUM_REPEATS))


def _run(script: Path) -> str:
    words = {0: "not reproduced", 1: "reproduced", 2: "could not tell"}
    try:
        ran = subprocess.run(
            [sys.executable, str(script)],
            cwd=ROOT,
            capture_output=True,
            check=False,
            timeout=REPEAT_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"ran for {REPEAT_LIMIT_S} s"
    if ran.returncode < 0:
        return f"its process was killed by signal {-ran.returncode}"
    return words.get(ran.returncode, f"exit status {ran.returncode}")
