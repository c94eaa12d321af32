"""`batchproof lab honest`: no false alarms.

Honest engines, plain and odd, keep every promise on many thousand generated workloads.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.errors import BatchproofError
from batchproof.models.embedded import DTYPES
from batchproof.records.campaign import Question
from batchproof.records.honest import HONEST, HonestCounts, HonestRecord
from batchproof.run.engine_names import BY_DEFAULT, ODD_PREFIX
from batchproof_lab.fingerprint import code_digest
from batchproof_lab.found import Found
from batchproof_lab.honest_count import record_of
from batchproof_lab.honest_page import honest_page
from batchproof_lab.honest_plan import MODELS, HonestPlan, honest_engines
from batchproof_lab.honest_tasks import HonestOutcome, HonestTask, judge_honest
from batchproof_lab.options import add_options
from batchproof_lab.right_alarms import settled
from batchproof_lab.work import Work
from batchproof_lab.worker_pool import LostTask

TASK_LIMIT_S = 3600.0  # far beyond any task: a worker that hangs is given up
MOST_LOST = 20  # tasks, after which the campaign ends: they judge nothing, so it might never end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choices.add_engines(parser, f"{', '.join(BY_DEFAULT)} and {ODD_PREFIX}NAME (default: all of them)")
    choices.add_count(parser, "--workloads", 10_000, "workloads to judge in each dtype before it stops")
    parser.add_argument(
        "--dtype",
        default="float32,bfloat16",
        metavar="D,D",
        help=f"{', '.join(DTYPES)} (default: %(default)s)",
    )
    choices.add_count(
        parser,
        "--examples",
        20,
        "examples of a property test in one task; with fewer, more engines, models and tests meet",
    )
    choices.add_repeatable(
        parser, "--model", "M", f"repeatable: {', '.join(MODELS)} (default: all of these)"
    )
    add_options(parser, seed=0)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if there was no alarm, else 1. Partial or interrupted runs are written to
    `honest-partial.*`; a shard writes its journal alone. Raises `UsageError`.
    """
    known = honest_engines()
    engines = choices.select_names(arguments.engines, known, "honest engine", "results/honest.md")
    dtypes = choices.select_names(arguments.dtype.split(","), DTYPES, "dtype")
    models = choices.select_names(arguments.model or (), MODELS, "embedded model")
    asked = (engines, dtypes, arguments.seed, arguments.examples, arguments.workloads)
    plan = HonestPlan(*asked, models=models)
    share = replace(plan, shard=arguments.shard)
    total = sum(each.share for each in share.chains)
    found: Found[HonestOutcome] = Found(HonestOutcome)
    work = Work(
        question=Question("honest", plan.question, code_digest()),
        found=found,
        key=attrgetter("key"),
        function=judge_honest,
        outcome_of=_Losses().outcome,
        progress=Progress("honest", "workload", total, arguments.progress),
        size_of=attrgetter("counts.workloads"),
        wanted=plan.wanted,
    )

    return work.run(
        arguments,
        TASK_LIMIT_S,
        lambda: share.tasks(found.outcomes),
        lambda: written(record_of(plan, found), arguments.output),
    )


def merged(asked: Mapping[str, Any], found: Found[HonestOutcome]) -> HonestRecord:
    """Returns what the journals of a question hold. Workloads wanted are the most that any wanted."""
    wanted = max((each.wanted for each in found.sittings.values()), default=1)
    return record_of(HonestPlan(**asked, wanted=wanted), found)


def written(record: HonestRecord, output: Path, is_whole: bool | None = None) -> int:
    """Writes the record and its page, and prints the alarms; returns 1 if there are any, else 0.

    By default it is whole if no run was stopped and all honest engines were judged.
    """
    record = settled(record, output)
    if is_whole is None:
        is_whole = record.is_complete and set(record.engines) >= set(honest_engines())
    write_result(HONEST, record, honest_page, output, "honest", is_whole)
    if record.alarms:
        print(f"{len(record.alarms)} alarms:", *(each.report for each in record.alarms), sep="\n\n")
    return 1 if record.alarms else 0


class _Losses:
    def __init__(self) -> None:
        self._num_lost = 0

    def outcome(self, task: HonestTask, found: HonestOutcome | LostTask) -> HonestOutcome:
        """Returns the outcome of a task. Raises `BatchproofError` if too many are lost."""
        if not isinstance(found, LostTask):
            return found
        self._num_lost += 1
        if self._num_lost > MOST_LOST:
            raise BatchproofError(f"{self._num_lost} tasks were lost, the last because {found.why}")
        return HonestOutcome(task, HonestCounts(), (found.why,))  # an alarm: nothing was judged
