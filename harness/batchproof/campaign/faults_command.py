"""`python -m batchproof faults`: the kill table. Is every planted fault caught, and by what?

1. Each fault on each model, first seed, by the tests of the promise it breaks.
2. Faults that nothing caught so far: on all models in one session, by those and then by all others.
3. On the quickest model that shows it, the further seeds.
4. Test functions that have caught nothing so far, alone on one fault after the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from batchproof.campaign.attempts import Attempt, Kill, make_attempt
from batchproof.campaign.kill_page import kill_page
from batchproof.campaign.kill_table import KillTable, in_quick_order, is_full
from batchproof.campaign.kill_table_problems import problems
from batchproof.campaign.update import still_busy, updated, whole_table
from batchproof.campaign.worker_pool import LostTask, WorkerPool
from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.models.embedded import DEFAULT_MODELS
from batchproof.records.kills import KILL_TABLE, KillTableRecord
from batchproof.records.made import made_now
from batchproof.run.registry import faults

TASK_LIMIT_S = 3600.0  # far beyond any session: a worker that hangs is given up

Attempting = Callable[[Attempt], Kill]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `batchproof faults`."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="planted faults (default: all)")
    parser.add_argument(
        "--model",
        action="append",
        metavar="M",
        help=f"repeatable: {', '.join(DEFAULT_MODELS)} (default: all of these)",
    )
    parser.add_argument(
        "--seeds",
        type=choices.seeds,
        default=(1, 2, 3),
        metavar="N,N",
        help="seeds of Hypothesis (default: 1,2,3)",
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
        help="hunt the named faults only, and put their rows into the existing whole table",
    )
    choices.add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if the table proves the suite, else 1. Partial or interrupted tables are written to
    `faults-partial.*`. Raises `UsageError`.
    """
    table = _empty_table(arguments)
    output = choices.writable(arguments.output)
    whole = whole_table(output / "faults.json", table) if arguments.update else None
    if whole is not None:
        table.busy = still_busy(whole, table.faults)
    total = len(table.faults) * (len(table.models) + len(table.seeds) - 1)
    progress = Progress("faults", "hunt", total, arguments.progress)
    is_complete = False
    try:
        with WorkerPool(arguments.jobs, TASK_LIMIT_S) as pool:
            _fill(table, pool, partial(make_attempt, time_limit_s=arguments.time_limit), progress)
        is_complete = True
    finally:  # whatever stopped it: hours of work are kept
        progress.close()
        record = table.as_record(made_now(), is_complete)
        if whole is not None and is_complete:
            record = updated(whole, record)
        is_whole = record.is_complete and record.is_full
        write_result(KILL_TABLE, record, kill_page, output, "faults", is_whole)
    return _conclude(record)


def _empty_table(arguments: argparse.Namespace) -> KillTable:
    known = faults()
    names = choices.chosen(arguments.names, known, "planted fault", "results/faults.md")
    models = choices.chosen(arguments.model, DEFAULT_MODELS, "embedded model")
    return KillTable(
        faults={name: known[name] for name in names},
        models=in_quick_order(models),
        seeds=arguments.seeds,
        is_full=is_full(names, known, models),
    )


def _fill(table: KillTable, pool: WorkerPool, make: Attempting, progress: Progress) -> None:
    for attempts in (table.on_each_model, table.on_all_models, table.at_home):
        _make(table, attempts(), pool, make, progress, is_counted=attempts != table.on_all_models)
    while idle := table.on_idle_tests():
        _make(table, idle, pool, make, progress)


def _make(
    table: KillTable,
    todo: list[Attempt],
    pool: WorkerPool,
    make: Attempting,
    progress: Progress,
    is_counted: bool = False,
) -> None:
    """Makes the attempts. `is_counted` states that the progress includes them already."""
    if not is_counted:
        progress.extend(len(todo))
    for attempt, found in pool.run(make, todo):
        kill = Kill(own_failures=(found.why,)) if isinstance(found, LostTask) else found
        table.kills[attempt] = kill
        progress.step(note=_note(attempt, table))


def _note(attempt: Attempt, table: KillTable) -> str:
    survivors = sum(kill.caught_by is None for kill in table.kills.values())
    return f"{attempt.fault} on {'+'.join(attempt.models)}, {survivors} without a catch"


def _conclude(record: KillTableRecord) -> int:
    found = problems(record)
    for text in found:
        print(text)
    caught = sum(bool(row.home) for row in record.faults.values())
    right, votes = record.diagnosis.right, record.diagnosis.votes
    print(f"{caught} of {len(record.faults)} faults caught; right cause in {right} of {votes} catches")
    return 1 if found else 0
