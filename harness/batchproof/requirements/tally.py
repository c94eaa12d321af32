"""What test records add up to: a cell for each engine and promise, and the totals of an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from batchproof.records.table import PromiseCell, Totals
from batchproof.records.trial_record import TrialRecord
from batchproof.requirements.promises import Promise

Outcome = tuple[str, TrialRecord]  # passed, failed, skipped or known


def cells_of(engine: str, outcomes: Iterable[Outcome]) -> Mapping[str, PromiseCell]:
    """Returns the cell of each promise id, in the order of the promises. Promises that no test
    checked are left out.
    """
    counts: dict[str, Counter[str]] = {}
    for outcome, record in outcomes:
        if record.engine == engine:
            for promise_id in record.counted_for:
                count = counts.setdefault(promise_id, Counter())
                count[_kind(outcome, record)] += 1
                count["near_ties"] += record.ledger.num_near_ties
    return {p.id: _cell(counts[p.id]) for p in Promise if p.id in counts}


def _kind(outcome: str, record: TrialRecord) -> str:
    """Returns the field of `PromiseCell` that counts the test."""
    if outcome == "passed" and record.is_inadequate:
        return "inadequate"
    if outcome == "skipped" and record.lacks is not None:
        return "no_cap"
    return "refused" if outcome == "skipped" and record.refused is not None else outcome


def _cell(count: Counter[str]) -> PromiseCell:
    return PromiseCell(_cell_text(count), **count)


def _cell_text(count: Counter[str]) -> str:
    """Returns the outcomes of one engine and promise in the form that `LEGEND` explains."""
    known = [f"known {count['known']}"] if count["known"] else []
    if count["failed"]:
        return " ".join([f"FAIL {count['failed']}", *known])
    if count["passed"]:
        near_ties = [f"~{count['near_ties']}"] if count["near_ties"] else []
        return " ".join([str(count["passed"]), *near_ties, *known])
    others = (kind for kind in ("inadequate", "no_cap", "refused", "skipped") if count[kind])
    return " ".join(known) or next(others).replace("_", " ")


def totals_of(engine: str, outcomes: Iterable[Outcome]) -> Totals:
    """Returns what all tests of an engine compared."""
    ledgers = [record.ledger for _, record in outcomes if record.engine == engine]
    return Totals(
        num_runs=sum(each.num_runs for each in ledgers),
        num_workloads=sum(each.num_workloads for each in ledgers),
        num_requests=sum(each.num_requests for each in ledgers),
        num_steps=sum(each.num_steps for each in ledgers),
        num_logits=sum(each.num_logits for each in ledgers),
        num_near_ties=sum(each.num_near_ties for each in ledgers),
    )
