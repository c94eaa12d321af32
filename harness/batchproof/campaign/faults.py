"""`python -m batchproof faults`: the kill table. Is every planted fault caught, and by what?

1. Each fault on each model, first seed, by the tests of the promise it breaks.
2. Faults that nothing caught so far: on all models in one session, by those and then by all others.
3. On the quickest model that shows it, the further seeds.
4. Test functions that have caught nothing so far, alone on one fault after the other.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from batchproof.campaign import choices
from batchproof.campaign.judge import problems
from batchproof.campaign.kill_page import kill_page
from batchproof.campaign.kill_table import KillTable, in_quick_order, is_full
from batchproof.campaign.kills import Attempt, Kill, make_attempt
from batchproof.campaign.progress import Progress
from batchproof.campaign.update import updated, whole_table
from batchproof.models.catalogue import EMBEDDED
from batchproof.provenance import provenance
from batchproof.run.registry import faults
from batchproof.worker_pool import LostTask, WorkerPool

TASK_LIMIT_S = 3600.0  # far beyond any session: a worker that hangs is given up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="planted faults (default: all)")
    parser.add_argument(
        "--model",
        action="append",
        metavar="M",
        help=f"repeatable: {', '.join(EMBEDDED)} (default: all of these)",
    )
    parser.add_argument(
        "--seeds",
        type=choices.seeds,
        default=(1, 2, 3),
        metavar="N,N",
        help="of Hypothesis (default: 1,2,3)",
    )
    parser.add_argument(
        "--time-limit",
        type=choices.seconds,
        default=5.0,
        metavar="S",
        help="seconds after which one call of an engine counts as hung (default: %(default)g)",
    )
    parser.add_argument(
        "--update",
        action="store_true",
        help="hunt the named faults only, and put their rows into the whole table that is there",
    )
    choices.add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """0 if the table proves the suite, else 1. A table of less than everything, or one that was stopped
    with Ctrl-C, is written beside the whole one: faults-partial.json and .md."""
    table = _empty_table(arguments)
    output = choices.writable(arguments.output)
    whole = whole_table(output / "faults.json", table) if arguments.update else None
    total = len(table.faults) * (len(table.models) + len(table.seeds) - 1)
    progress = Progress("faults", "hunt", total, arguments.progress)
    is_complete = False
    try:
        with WorkerPool(arguments.jobs, TASK_LIMIT_S) as pool:
            _fill(table, pool, partial(make_attempt, time_limit_s=arguments.time_limit), progress)
        is_complete = True
    finally:  # whatever stopped it: hours of work are kept
        progress.close()
        data = table.as_data() | {"made": provenance(), "is_complete": is_complete}
        if whole is not None and is_complete:
            data = updated(whole, data)
        _write(data, output)
    return _conclude(data)


def _empty_table(arguments: argparse.Namespace) -> KillTable:
    known = faults()
    names = choices.chosen(arguments.names, known, "planted fault")
    models = choices.chosen(arguments.model, EMBEDDED, "embedded model")
    return KillTable(
        faults={name: known[name] for name in names},
        models=in_quick_order(models),
        seeds=arguments.seeds,
        is_full=is_full(names, known, models),
    )


def _fill(table: KillTable, pool: WorkerPool, make: partial[Any], progress: Progress) -> None:
    for attempts in (table.on_each_model, table.on_all_models, table.at_home):
        _make(table, attempts(), pool, make, progress, is_counted=attempts != table.on_all_models)
    while idle := table.on_idle_tests():
        _make(table, idle, pool, make, progress)


def _make(
    table: KillTable,
    todo: list[Attempt],
    pool: WorkerPool,
    make: partial[Any],
    progress: Progress,
    is_counted: bool = False,
) -> None:
    """`is_counted`: the progress knows of these attempts already."""
    if not is_counted:
        progress.extend(len(todo))
    for attempt, found in pool.run(make, todo):
        kill = Kill(own_failures=(found.why,)) if isinstance(found, LostTask) else found
        table.kills[attempt] = kill
        progress.step(note=_note(attempt, table))


def _note(attempt: Attempt, table: KillTable) -> str:
    survivors = sum(kill.caught_by is None for kill in table.kills.values())
    return f"{attempt.fault} on {'+'.join(attempt.models)}, {survivors} without a catch"


def _write(data: dict[str, Any], output: Path) -> None:
    whole = data["is_complete"] and data["is_full"]
    path = output / ("faults.json" if whole else "faults-partial.json")
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(kill_page(data), encoding="utf-8")
    print(f"written: {path} and {path.with_suffix('.md').name}", file=sys.stderr)


def _conclude(data: dict[str, Any]) -> int:
    found = problems(data)
    for text in found:
        print(text)
    caught = sum(bool(row["home"]) for row in data["faults"].values())
    right, votes = data["diagnosis"]["right"], data["diagnosis"]["votes"]
    print(f"{caught} of {len(data['faults'])} faults caught; right cause in {right} of {votes} catches")
    return 1 if found else 0
