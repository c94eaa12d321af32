"""What the lines of a journal add up to."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from batchproof.judgement.findings import Finding, findings_of
from batchproof.places import ROOT
from batchproof.plugin.table import (
    Record,
    cell,
    counts,
    totals,
)
from batchproof.promises import Promise

NUM_REPEATS = 2  # of a reproduction
REPEAT_LIMIT_S = 300
UNSAID = "?"  # a failure that names no promise: the process ended, or the harness itself failed


@dataclass(frozen=True, slots=True)
class Fault:
    """All failures that one finding explains; else those of one test function that broke the same
    promise. The shortest is told."""

    promises: tuple[str, ...]
    functions: tuple[str, ...]
    models: tuple[str, ...]
    told: str
    test: str  # the one that is told
    num_tests: int
    finding: Finding | None = None
    script: Path | None = None
    repeats: tuple[str, ...] = ()  # what became of each run of the script

    @property
    def title(self) -> str:
        return self.finding.title if self.finding else self.told.splitlines()[0]

    @property
    def is_documented(self) -> bool:
        return self.finding is not None and self.finding.is_documented


@dataclass(frozen=True)
class Verdict:
    """Of one engine."""

    engine: str
    release: str | None  # the engine's name and version in its own words
    conventions: tuple[str, ...]  # and settings, in its own words
    records: list[Record]
    skips: Counter[str]  # reason -> tests
    faults: list[Fault] = field(default_factory=list)
    is_complete: bool = True
    precision: str = ""  # that was declared for it; empty: that of the model
    unshown: tuple[Finding, ...] = ()  # known of this release, and no test of this run shows them

    @property
    def title(self) -> str:
        """The release, and the options that make it another engine; a URL or a command line is none."""
        if self.release is None:
            return self.engine
        target, _, query = self.engine.partition("?")
        has_options = query and ":" not in target and "://" not in query
        precision = f"judged in {self.precision}" if self.precision else ""
        options = query.replace("&", ", ") if has_options else ""
        return ", ".join(filter(None, (self.release, options, precision)))

    @cached_property
    def cells(self) -> dict[str, tuple[str, Counter[str]]]:
        """Promise id -> how it reads, and what is in it; in the order of the promises."""
        found = counts(self.engine, self.records)
        return {p.id: (cell(found[p.id]), found[p.id]) for p in Promise if p.id in found}

    @property
    def defects(self) -> list[Fault]:
        """All that is not documented, a process that ended included."""
        return [fault for fault in self.faults if not fault.is_documented]

    @property
    def held(self) -> list[str]:
        return [p for p, (_, c) in self.cells.items() if c["passed"] and not c["failed"]]

    @property
    def broken(self) -> list[str]:
        """Not by a documented convention alone."""
        undocumented = {p for fault in self.defects for p in fault.promises}
        return [p for p, (_, c) in self.cells.items() if c["failed"] and p in undocumented]

    @property
    def differing(self) -> list[str]:
        """What fails there is documented."""
        return [p for p, (_, c) in self.cells.items() if c["failed"] and p not in self.broken]

    @property
    def untested(self) -> list[str]:
        known = (*self.held, *self.broken, *self.differing)
        return [p.id for p in Promise if p.id not in known]

    @property
    def totals(self) -> Counter[str]:
        return totals(self.engine, self.records)


def verdict_of(
    engine: str,
    entries: Iterable[dict[str, Any]],
    is_complete: bool,
    findings: Sequence[Finding] = (),
) -> Verdict:
    """Runs nothing."""
    entries = list(entries)
    records = [(each["outcome"], each["record"]) for each in entries if "record" in each]
    skips = Counter(each["told"] for each in entries if each["outcome"] == "skipped")
    ledgers = [record.get("ledger", {}) for _, record in records]
    release = next(filter(None, (each.get("release") for each in ledgers)), None)
    conventions: list[str] = next(filter(None, (each.get("conventions") for each in ledgers)), [])
    precision = next(filter(None, (each.get("precision") for each in ledgers)), "")
    known = findings_of(release, findings)
    faults = list(_faults(entries, known))
    unshown = tuple(each for each in known if all(fault.finding is not each for fault in faults))
    return Verdict(
        engine,
        release,
        tuple(conventions),
        records,
        skips,
        faults,
        is_complete,
        precision,
        unshown,
    )


def _faults(entries: Iterable[dict[str, Any]], findings: Sequence[Finding]) -> Iterator[Fault]:
    groups: dict[Finding | tuple[str, ...], list[dict[str, Any]]] = {}
    for each in entries:
        if each["outcome"] == "failed":
            finding = next((finding for finding in findings if finding.fits(each)), None)
            key = finding or (*_promises(each), _function(each["test"]))
            groups.setdefault(key, []).append(each)
    faults = (_fault(group, key if isinstance(key, Finding) else None) for key, group in groups.items())
    yield from sorted(faults, key=_in_order)


def _fault(group: list[dict[str, Any]], finding: Finding | None) -> Fault:
    shown = min(group, key=lambda each: (_replay(each) is None, len(each["told"])))
    told, path = shown["told"], _replay(shown)
    promises = {promise for each in group for promise in _promises(each)}
    return Fault(
        tuple(sorted(promises, key=_rank)),
        tuple(dict.fromkeys(_function(each["test"]) for each in group)),
        tuple(dict.fromkeys(each["record"]["model"] for each in group if "record" in each)),
        told,
        shown["test"],
        len(group),
        finding,
        finding.script if finding and finding.script else path,
    )


def _replay(entry: dict[str, Any]) -> Path | None:
    """The failure file that the test has left."""
    path = entry.get("record", {}).get("failure", {}).get("replay")
    return Path(path) if path else None


def _promises(entry: dict[str, Any]) -> list[str]:
    """Those it counts for, as in the table."""
    record = entry.get("record", {})
    return [record["broken"]] if "broken" in record else list(record.get("promises", (UNSAID,)))


def _in_order(fault: Fault) -> tuple[bool, int, str]:
    """Defects first; then as the promises go."""
    return fault.is_documented, _rank(fault.promises[0]), fault.title


def _rank(promise: str) -> int:
    """In the order of the promises; what names none comes last."""
    ids = [each.id for each in Promise]
    return ids.index(promise) if promise in ids else len(ids)


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
    is_file = script.suffix == ".json"
    try:
        ran = subprocess.run(
            [sys.executable, *(["-m", "batchproof", "replay"] if is_file else []), str(script)],
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
