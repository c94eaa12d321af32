"""Adds up records of honest engines, made by different runs and perhaps on different machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from batchproof.campaign.conformance_modules import conformance_functions
from batchproof.campaign.honest_table import honest_engines
from batchproof.errors import UsageError
from batchproof.models.embedded import DTYPES, EMBEDDED
from batchproof.records.honest import CountsByDtype, HonestCounts, HonestRecord
from batchproof.records.provenance import Provenance


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
