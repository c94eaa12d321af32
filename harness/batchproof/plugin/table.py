"""What the conformance tests of a session add up to: the table engine x promise, and lines below it.

A record is what the `trial` fixture notes about one test; it travels with the test's report, so that
it is the same in one process and over many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from batchproof.promises import Promise

RECORD = "batchproof"
Record = tuple[str, dict[str, Any]]  # passed, failed, skipped or known; and what the trial noted

LEGEND = (
    "n: tests passed   ~n: with n near-ties   FAIL n: tests failed   known n: failed as --xfails says",
    "no cap: the engine lacks a capability   refused: it does not serve the model   -: not run",
)


def records_of(reports: Iterable[pytest.TestReport]) -> Iterator[Record]:
    """One of each conformance test; errors of set-up and tear-down count as failures."""
    for report in reports:
        record = dict(getattr(report, "user_properties", ())).get(RECORD)
        if isinstance(record, dict) and (report.when == "call" or report.outcome != "passed"):
            yield "known" if hasattr(report, "wasxfail") else report.outcome, record


def num_compared(records: Iterable[Record]) -> int:
    """Answers that prove something; what a known failure compared before it failed does not."""
    return sum(
        r.get("ledger", {}).get("num_requests", 0) for outcome, r in records if outcome != "known"
    )


def table(records: list[Record]) -> Iterator[str]:
    engines = list(dict.fromkeys(record["engine"] for _, record in records))
    cells = {engine: _texts(counts(engine, records)) for engine in engines}
    widths = {e: max(7, len(e), *map(len, cells[e].values())) for e in engines}
    titles = max(len(str(promise)) for promise in Promise)
    yield " " * titles + "".join(f"  {engine:>{widths[engine]}}" for engine in engines)
    for promise in Promise:
        if any(promise.id in row for row in cells.values()):
            values = (f"  {cells[e].get(promise.id, '-'):>{widths[e]}}" for e in engines)
            yield f"{promise!s:<{titles}}" + "".join(values)
    yield from LEGEND
    for engine in engines:
        yield _totals(engine, totals(engine, records))


def counts(engine: str, records: Iterable[Record]) -> dict[str, Counter[str]]:
    """Promise id -> outcomes. A failure counts for the promise it broke, whichever test found it."""
    found: dict[str, Counter[str]] = {}
    for outcome, record in records:
        if record["engine"] != engine:
            continue
        ids = [record["broken"]] if "broken" in record else record["promises"]
        kind = "inadequate" if outcome == "passed" and is_inadequate(record) else outcome
        if outcome == "skipped":
            kind = "no cap" if "lacks" in record else "refused" if "refused" in record else "skipped"
        for promise_id in ids:
            count = found.setdefault(promise_id, Counter())
            count[kind] += 1
            count["near-ties"] += record.get("ledger", {}).get("num_near_ties", 0)
    return found


def _texts(found: dict[str, Counter[str]]) -> dict[str, str]:
    return {promise_id: cell(count) for promise_id, count in found.items()}


def cell(count: Counter[str]) -> str:
    """How the outcomes of one engine and promise read, as `LEGEND` says."""
    known = [f"known {count['known']}"] if count["known"] else []
    if count["failed"]:
        return " ".join([f"FAIL {count['failed']}", *known])
    if count["passed"]:
        near_ties = [f"~{count['near-ties']}"] if count["near-ties"] else []
        return " ".join([str(count["passed"]), *near_ties, *known])
    others = (kind for kind in ("inadequate", "no cap", "refused", "skipped") if count[kind])
    return " ".join(known) or next(others)


def totals(engine: str, records: Iterable[Record]) -> Counter[str]:
    """What all tests of an engine compared."""
    total: Counter[str] = Counter()
    for _, record in records:
        if record["engine"] == engine:
            ledger = record.get("ledger", {})
            total.update({key: value for key, value in ledger.items() if isinstance(value, int)})
    return total


def _totals(engine: str, total: Counter[str]) -> str:
    return (
        f"{engine}: {total['num_workloads']:,} workloads, {total['num_requests']:,} answers and "
        f"{total['num_steps']:,} tokens compared, {total['num_near_ties']:,} near-ties"
    )


def is_inadequate(record: dict[str, Any]) -> bool:
    """Judged by the tokens alone of a model that cannot show a fault in them. Logits could."""
    return not record.get("is_adequate", True) and not record.get("ledger", {}).get("num_logits", 0)


def error_units(records: Iterable[Record]) -> list[tuple[str, float]]:
    units = ((r["model"], r.get("ledger", {}).get("error_unit")) for _, r in records)
    return sorted({(model, unit) for model, unit in units if unit is not None})


def adequacies(records: Iterable[Record]) -> list[tuple[str, str, bool]]:
    """Model, what was measured, and whether that is too little."""
    found = {
        (record["model"], record["adequacy"], not record["is_adequate"])
        for _, record in records
        if "adequacy" in record
    }
    return sorted(found)


def notes(records: Iterable[Record]) -> list[str]:
    found = [note for _, record in records for note in record.get("ledger", {}).get("notes", ())]
    return list(dict.fromkeys(found))
