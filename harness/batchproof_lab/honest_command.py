"""`batchproof lab honest`: no false alarms.

Honest engines, plain and odd, keep every promise on many thousand generated workloads.
`honest_alarms.yaml`, in the folder of the record, maps an alarm to the reason why it was right: an
engine thought to be honest had a bug of its own. Such an alarm stays on the page and counts as no false
one; the engine is mended.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.errors import BatchproofError
from batchproof.models.embedded import DTYPES, EMBEDDED
from batchproof.records.honest import (
    HONEST,
    CountsByDtype,
    FalseAlarm,
    HonestCounts,
    HonestRecord,
    HonestRun,
    RightAlarm,
)
from batchproof.records.machine_paths import without_machine_paths
from batchproof.records.markdown import header, line
from batchproof.run.engine_names import BY_DEFAULT, ODD_PREFIX
from batchproof.validation.yaml_nodes import read_yaml
from batchproof_lab.campaign import Campaign, CampaignState, Question, Sitting, add_options
from batchproof_lab.conformance_modules import conformance_functions
from batchproof_lab.fingerprint import code_digest
from batchproof_lab.honest_plan import (
    MODELS,
    HonestOutcome,
    HonestPlan,
    HonestTask,
    honest_engines,
    judge_honest,
)
from batchproof_lab.worker_pool import LostTask

TASK_LIMIT_S = 3600.0  # far beyond any task: a worker that hangs is given up
Table = dict[str, dict[str, HonestCounts]]  # name -> dtype -> what was counted
Counts = TypeVar("Counts")
RULE_OF_THREE = -math.log(0.05)  # no event in n trials: 95 % confidence that its rate is below 3.0 / n
FILE = "honest_alarms.yaml"
RULE = "the headings of alarms to reasons"
COLUMNS = [each.name for each in fields(HonestCounts)]
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

    def lost_outcome(task: HonestTask, lost: LostTask) -> HonestOutcome:
        num_lost = 1 + sum(not each.counts.tasks for each in state.outcomes.values())
        if num_lost > MOST_LOST:
            raise BatchproofError(f"{num_lost} tasks were lost, the last because {lost.why}")
        return HonestOutcome(task, HonestCounts(), (lost.why,))  # an alarm: nothing was judged

    campaign = Campaign(
        question=Question("honest", plan.question, code_digest()),
        state=state,
        function=judge_honest,
        lost_outcome=lost_outcome,
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
    alarms = tuple(
        FalseAlarm(task.engine, task.model, task.dtype, task.function, task.seed, report)
        for task, reports in ((each.task, each.alarms) for each in state.outcomes.values())
        for report in map(without_machine_paths, reports)
    )
    return HonestRecord(
        made=replace(state.made(), sittings=()),  # the runs say the same
        runs=tuple(_runs(plan, state)),
        totals=_in_order(tables[0].get("all", {}), DTYPES),
        engines=_in_order(tables[1], honest_engines()),
        models=_in_order(tables[2], EMBEDDED),
        tests=_in_order(tables[3], conformance_functions()),
        alarms=alarms,
    )


def _in_order(table: Mapping[str, Counts], order: Iterable[str]) -> dict[str, Counts]:
    return {name: table[name] for name in order if name in table}


def _runs(plan: HonestPlan, state: CampaignState[HonestOutcome]) -> Iterator[HonestRun]:
    """Yields a run for each sitting, with the workloads that it judged."""
    judged: Counter[Sitting] = Counter()
    for key, sitting in state.sittings.items():
        judged[sitting] += state.outcomes[key].counts.workloads
    is_complete = plan.is_complete(state.outcomes)
    for sitting, workloads in judged.items():
        asked = (plan.seed, plan.wanted, plan.num_examples)
        yield HonestRun(sitting.made, is_complete, *asked, workloads)


def write_record(record: HonestRecord, output: Path) -> int:
    """Writes the record and its page, and prints the alarms; returns 1 if there are any, else 0. It is
    whole if no run was stopped and all honest engines were judged."""
    record = with_right_alarms(record, output)
    is_whole = record.is_complete and set(record.engines) >= set(honest_engines())
    write_result(HONEST, record, honest_page, output, "honest", is_whole)
    if record.alarms:
        print(f"{len(record.alarms)} alarms:", *(each.report for each in record.alarms), sep="\n\n")
    return 1 if record.alarms else 0


def honest_page(record: HonestRecord) -> str:
    lines = ["# No false alarms: honest engines before the conformance suite", ""]
    lines += record.made.lines()
    if len(record.runs) == 1:
        (run,) = record.runs
        lines += [f"* seed {run.seed}; {run.examples_per_task} examples of a property test a task"]
    lines += ["", *_verdict(record), ""]
    if len(record.runs) > 1:
        lines += ["## Runs", "", *_run_rows(record.runs), ""]
    lines += ["## Engines", "", *_rows(record.engines), ""]
    lines += ["## Models", "", *_rows(record.models), ""]
    lines += ["## Tests", "", *_rows(record.tests), ""]
    if record.alarms:
        lines += ["## Alarms", "", *(text for each in record.alarms for text in _alarm_lines(each))]
    if record.right:
        lines += ["## Alarms that were right", ""]
        lines += [text for each in record.right for text in _alarm_lines(each.alarm, each.why)]
    return "\n".join(lines)


def _verdict(record: HonestRecord) -> Iterator[str]:
    if not record.is_complete:
        stopped = sum(not run.is_complete for run in record.runs)
        if len(record.runs) == 1:
            yield "INCOMPLETE: it was stopped before all workloads were judged."
        else:
            of = f"{stopped} of {len(record.runs)}"
            yield f"Runs that were stopped early: {of}. What they judged counts."
        yield ""
    count = len(record.alarms)
    judged = sum(each.workloads for each in record.totals.values())
    if count:
        yield f"ALARMS: {count}; their reports stand at the end."
    elif judged:
        yield f"No false alarm in {judged:,} workloads: with 95 % confidence fewer than one in"
        yield f"{int(judged / RULE_OF_THREE):,} workloads of such engines raises one."
    if record.right:
        yield f"Alarms that were right, about a bug of the engine's own: {len(record.right)}."
    yield ""
    yield from _rows({"all": record.totals})


def _run_rows(runs: Sequence[HonestRun]) -> Iterator[str]:
    yield from header("seed", "workloads", "examples a task", "made by", "on", "machine", "commit")
    for run in runs:
        made = run.made
        stopped = "" if run.is_complete else ", stopped"
        versions = ", ".join(f"{name} {number}" for name, number in made.versions.items())
        yield line(
            str(run.seed),
            f"{run.workloads:,}{stopped}",
            str(run.examples_per_task),
            f"`{made.command}`",
            made.date,
            f"{made.machine}; {versions}",
            made.commit,
        )


def _rows(rows: Mapping[str, CountsByDtype]) -> Iterator[str]:
    yield from header("", "dtype", *(name.replace("_", "-") for name in COLUMNS))
    for name, by_dtype in rows.items():
        for dtype, counts in by_dtype.items():
            shown = name.rpartition("::")[2]
            yield line(shown, dtype, *(f"{getattr(counts, each):,}" for each in COLUMNS))


def _alarm_lines(alarm: FalseAlarm, why: str = "") -> list[str]:
    reason = ["", why] if why else []
    report = [f"    {text}" for text in alarm.report.splitlines()]
    return [f"### {name_of(alarm)}", *reason, "", f"`{alarm.test}`", "", *report, ""]


def with_right_alarms(record: HonestRecord, folder: Path) -> HonestRecord:
    """Sorts the alarms by what the folder's file says of them. Raises `CaseError` naming what is wrong
    in the file."""
    reasons: dict[str, str] = {}
    if (path := folder / FILE).exists():
        pairs = read_yaml(path, "the file", RULE).pairs(f"a mapping of {RULE}")
        reasons = {name: why.text().strip() for name, why in pairs.items()}
    right = tuple(RightAlarm(e, reasons[name_of(e)]) for e in record.alarms if name_of(e) in reasons)
    false = tuple(each for each in record.alarms if name_of(each) not in reasons)
    return replace(record, alarms=false, right=(*record.right, *right))


def name_of(alarm: FalseAlarm) -> str:
    """Returns the alarm's heading on the page, its key in the file."""
    return f"{alarm.engine} on {alarm.model}, {alarm.dtype}, seed {alarm.seed}"
