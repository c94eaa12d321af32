"""`batchproof lab honest`: no false alarms.

Honest engines, plain and odd, keep every promise on many thousand generated workloads.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.errors import BatchproofError
from batchproof.models.embedded import DTYPES, EMBEDDED
from batchproof.records.texts import without_machine_paths
from batchproof.run.engine_names import BY_DEFAULT, ODD_PREFIX
from batchproof_lab.campaign import Campaign, CampaignState, Question, add_options
from batchproof_lab.conformance_modules import conformance_functions
from batchproof_lab.fingerprint import code_digest
from batchproof_lab.honest_page import honest_page, with_right_alarms
from batchproof_lab.honest_plan import (
    MODELS,
    HonestOutcome,
    HonestPlan,
    HonestTask,
    honest_engines,
    judge_honest,
)
from batchproof_lab.record_kinds import HONEST, FalseAlarm, HonestCounts, HonestRecord, HonestRun
from batchproof_lab.worker_pool import LostTask

TASK_LIMIT_S = 3600.0  # far beyond any task: a worker that hangs is given up
Table = dict[str, dict[str, HonestCounts]]  # name -> dtype -> what was counted
Counts = TypeVar("Counts")
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
    `honest-partial.*`. Raises `UsageError`.
    """
    known = honest_engines()
    engines = choices.select_names(arguments.engines, known, "honest engine", "results/honest.md")
    dtypes = choices.select_names(arguments.dtype.split(","), DTYPES, "dtype")
    models = choices.select_names(arguments.model or (), MODELS, "embedded model")
    asked = (engines, dtypes, arguments.seed, arguments.examples, arguments.workloads)
    plan = HonestPlan(*asked, models=models)
    state: CampaignState[HonestOutcome] = CampaignState(HonestOutcome)
    total = plan.wanted * len(plan.dtypes)
    campaign = Campaign(
        question=Question("honest", plan.question, code_digest()),
        state=state,
        function=judge_honest,
        lost_outcome=_Losses().outcome,
        progress=Progress("honest", "workload", total, arguments.progress),
        size_of=attrgetter("counts.workloads"),
    )
    return campaign.run(
        arguments,
        TASK_LIMIT_S,
        lambda: plan.tasks(state.outcomes),
        lambda: write_record(record_of(plan, state), arguments.output),
    )


def record_of(plan: HonestPlan, state: CampaignState[HonestOutcome]) -> HonestRecord:
    """What the journal of a question holds, with a run for each sitting."""
    tables: tuple[Table, ...] = ({}, {}, {}, {})
    for outcome in state.outcomes.values():
        task = outcome.task
        names = ("all", task.engine, task.model, task.function)
        for table, name in zip(tables, names, strict=True):
            counts = table.setdefault(name, {})
            counts[task.dtype] = counts.get(task.dtype, HonestCounts()) + outcome.counts
    totals, engines, models, tests = tables
    alarms = tuple(alarm for outcome in state.outcomes.values() for alarm in _alarms(outcome))
    return HonestRecord(
        made=replace(state.made(), sittings=()),  # the runs say the same
        runs=tuple(_runs(plan, state)),
        totals=_in_order(totals.get("all", {}), DTYPES),
        engines=_in_order(engines, honest_engines()),
        models=_in_order(models, EMBEDDED),
        tests=_in_order(tests, conformance_functions()),
        alarms=alarms,
    )


def _in_order(table: Mapping[str, Counts], order: Iterable[str]) -> dict[str, Counts]:
    return {name: table[name] for name in order if name in table}


def _runs(plan: HonestPlan, state: CampaignState[HonestOutcome]) -> Iterator[HonestRun]:
    judged: Counter[str] = Counter()
    for key, sitting in state.sittings.items():
        judged[sitting.id] += state.outcomes[key].counts.workloads
    is_complete = plan.is_complete(state.outcomes)
    for sitting in {each.id: each for each in state.sittings.values()}.values():
        yield HonestRun(
            made=sitting.made,
            is_complete=is_complete,
            seed=plan.seed,
            wanted=plan.wanted,
            examples_per_task=plan.num_examples,
            workloads=judged[sitting.id],
        )


def _alarms(outcome: HonestOutcome) -> Iterator[FalseAlarm]:
    task = outcome.task
    for report in outcome.alarms:
        text = without_machine_paths(report)
        yield FalseAlarm(task.engine, task.model, task.dtype, task.function, task.seed, text)


def write_record(record: HonestRecord, output: Path) -> int:
    """Writes the record and its page, and prints the alarms; returns 1 if there are any, else 0. It is
    whole if no run was stopped and all honest engines were judged."""
    record = with_right_alarms(record, output)
    is_whole = record.is_complete and set(record.engines) >= set(honest_engines())
    write_result(HONEST, record, honest_page, output, "honest", is_whole)
    if record.alarms:
        print(f"{len(record.alarms)} alarms:", *(each.report for each in record.alarms), sep="\n\n")
    return 1 if record.alarms else 0


class _Losses:
    def __init__(self) -> None:
        self._num_lost = 0

    def outcome(self, task: HonestTask, lost: LostTask) -> HonestOutcome:
        """The outcome of a lost task. Raises `BatchproofError` if too many are lost."""
        self._num_lost += 1
        if self._num_lost > MOST_LOST:
            raise BatchproofError(f"{self._num_lost} tasks were lost, the last because {lost.why}")
        return HonestOutcome(task, HonestCounts(), (lost.why,))  # an alarm: nothing was judged
