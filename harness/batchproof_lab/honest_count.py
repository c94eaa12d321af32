"""Adds up what honest engines were judged on: the outcomes of one question, and records of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain

from batchproof.errors import UsageError
from batchproof.models.embedded import DTYPES, EMBEDDED
from batchproof.records.honest import CountsByDtype, FalseAlarm, HonestCounts, HonestRecord, HonestRun
from batchproof.records.machine_paths import without_machine_paths
from batchproof.records.provenance import Provenance
from batchproof_lab.conformance_modules import conformance_functions
from batchproof_lab.found import Found
from batchproof_lab.honest_plan import HonestPlan, honest_engines
from batchproof_lab.honest_tasks import HonestOutcome

Table = dict[str, dict[str, HonestCounts]]  # name -> dtype -> what was counted


def record_of(plan: HonestPlan, found: Found[HonestOutcome]) -> HonestRecord:
    """Returns what the journals of a question hold, with a run for each sitting."""
    tables: tuple[Table, ...] = ({}, {}, {}, {})
    for outcome in found.outcomes.values():
        task = outcome.task
        names = ("all", task.engine, task.model, task.function)
        for table, name in zip(tables, names, strict=True):
            counts = table.setdefault(name, {})
            counts[task.dtype] = counts.get(task.dtype, HonestCounts()) + outcome.counts
    totals, engines, models, tests = tables
    alarms = tuple(alarm for outcome in found.outcomes.values() for alarm in _alarms(outcome))
    runs = tuple(_runs(plan, found))
    made = replace(found.made(), sittings=())  # the runs say the same
    record = HonestRecord(made, runs, totals.get("all", {}), engines, models, tests, alarms)
    return added_up({"": record}, made)


def _runs(plan: HonestPlan, found: Found[HonestOutcome]) -> Iterable[HonestRun]:
    judged: Counter[str] = Counter()
    for key, sitting in found.sittings.items():
        judged[sitting.id] += found.outcomes[key].counts.workloads
    is_complete = plan.is_complete(found.outcomes)
    for sitting in {each.id: each for each in found.sittings.values()}.values():
        yield HonestRun(
            made=sitting.made,
            is_complete=is_complete,
            seed=plan.seed,
            wanted=sitting.wanted,
            examples_per_task=plan.num_examples,
            workloads=judged[sitting.id],
        )


def _alarms(outcome: HonestOutcome) -> Iterable[FalseAlarm]:
    task = outcome.task
    for report in outcome.alarms:
        text = without_machine_paths(report)
        yield FalseAlarm(task.engine, task.model, task.dtype, task.function, task.seed, text)


def added_up(records: Mapping[str, HonestRecord], made: Provenance) -> HonestRecord:
    """Returns one record of all runs, by the names of their files.

    Raises `UsageError` if two of them have a run of the same seed: both would count its workloads.
    """
    seen: dict[int, str] = {}
    for file, record in records.items():
        for run in record.runs:
            if run.seed in seen:
                raise UsageError(
                    f"'{seen[run.seed]}' and '{file}' both hold workloads of seed {run.seed}, which "
                    f"must not count twice: merge runs of different seeds"
                )
        seen |= {run.seed: file for run in record.runs}
    parts = records.values()
    return HonestRecord(
        made=made,
        runs=tuple(chain.from_iterable(each.runs for each in parts)),
        totals=_sum((each.totals for each in parts), DTYPES),
        engines=_nested((each.engines for each in parts), honest_engines()),
        models=_nested((each.models for each in parts), EMBEDDED),
        tests=_nested((each.tests for each in parts), conformance_functions()),
        alarms=tuple(chain.from_iterable(each.alarms for each in parts)),
        right=tuple(chain.from_iterable(each.right for each in parts)),
    )


def _nested(
    tables: Iterable[Mapping[str, CountsByDtype]], order: Iterable[str]
) -> dict[str, CountsByDtype]:
    """Returns the sum of tables, names in this order; those that exist no more come last."""
    tables = list(tables)
    known = [name for name in order if any(name in table for table in tables)]
    names = dict.fromkeys([*known, *chain.from_iterable(tables)])
    return {name: _sum((table.get(name, {}) for table in tables), sorted(DTYPES)) for name in names}


def _sum(parts: Iterable[CountsByDtype], order: Iterable[str]) -> dict[str, HonestCounts]:
    parts = list(parts)
    return {
        dtype: sum((part[dtype] for part in parts if dtype in part), start=HonestCounts())
        for dtype in order
        if any(dtype in part for part in parts)
    }
