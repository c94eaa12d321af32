"""`python -m batchproof honest`: no false alarms.

Honest engines, plain and odd, keep every promise on many thousand generated workloads.
"""

from __future__ import annotations

import argparse

from batchproof.campaign.honest_page import honest_page
from batchproof.campaign.honest_table import HonestTable, honest_engines
from batchproof.campaign.honest_tasks import judge_honest, lost
from batchproof.campaign.worker_pool import LostTask, WorkerPool
from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.errors import BatchproofError
from batchproof.models.embedded import DTYPES
from batchproof.records.honest import HONEST
from batchproof.records.made import made_now
from batchproof.run.registry import BY_DEFAULT, ODD_PREFIX

TASK_LIMIT_S = 3600.0  # far beyond any task: a worker that hangs is given up
MOST_LOST = 20  # tasks, after which the campaign ends: they judge nothing, so it might never end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `batchproof honest`."""
    parser.add_argument(
        "engines",
        nargs="*",
        metavar="ENGINE",
        help=f"{', '.join(BY_DEFAULT)} and {ODD_PREFIX}NAME (default: all of them)",
    )
    parser.add_argument(
        "--workloads",
        type=choices.positive,
        default=10_000,
        metavar="N",
        help="workloads to judge in each dtype before it stops (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        default="float32,bfloat16",
        metavar="D,D",
        help=f"{', '.join(DTYPES)} (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=choices.whole,
        default=0,
        metavar="S",
        help="seed of everything drawn (default: %(default)s)",
    )
    parser.add_argument(
        "--examples",
        type=choices.positive,
        default=20,
        metavar="N",
        help="examples of a property test in one task; with fewer, more engines, models and tests meet "
        "(default: %(default)s)",
    )
    choices.add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if there was no alarm, else 1. Partial or interrupted runs are written to
    `honest-partial.*`. Raises `UsageError`.
    """
    known = honest_engines()
    engines = choices.chosen(arguments.engines, known, "honest engine", "results/honest.md")
    dtypes = choices.chosen(arguments.dtype.split(","), DTYPES, "dtype")
    table = HonestTable(engines, dtypes, arguments.workloads, arguments.seed, arguments.examples)
    output = choices.writable(arguments.output)
    total = arguments.workloads * len(dtypes)
    progress = Progress("honest", "workload", total, arguments.progress)
    is_complete, num_lost = False, 0
    try:
        with WorkerPool(arguments.jobs, TASK_LIMIT_S) as pool:
            for task, found in pool.run(judge_honest, table.tasks()):
                seen = lost(found.why) if isinstance(found, LostTask) else found
                num_lost += isinstance(found, LostTask)
                if num_lost > MOST_LOST:
                    raise BatchproofError(
                        f"{num_lost} tasks were lost, the last because {seen.alarms[0]}"
                    )
                table.add(task, seen)
                progress.step(seen.counts.workloads, f"{len(table.alarms)} alarms")
        is_complete = True
    finally:  # whatever stopped it: hours of work are kept
        progress.close()
        record = table.as_record(made_now(), is_complete)
        is_whole = is_complete and engines == known
        write_result(HONEST, record, honest_page, output, "honest", is_whole)
    if table.alarms:
        print(f"{len(table.alarms)} alarms:", *(each.report for each in table.alarms), sep="\n\n")
    return 1 if table.alarms else 0
