"""`batchproof lab honest`: no false alarms.

Honest engines, plain and odd, keep every promise on many thousand generated workloads.
"""

import argparse
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from operator import add, attrgetter
from pathlib import Path
from typing import TypeVar

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.errors import BatchproofError, UsageError
from batchproof.models.embedded import DTYPES, EMBEDDED, NAN_MODEL
from batchproof.places import ROOT
from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance
from batchproof.records.texts import without_machine_paths
from batchproof.run.engine_names import BY_DEFAULT, ODD_PREFIX
from batchproof.run.registry import oddities
from batchproof_lab.campaign import Campaign, CampaignState, Question
from batchproof_lab.conformance_modules import conformance_functions
from batchproof_lab.fingerprint import code_digest
from batchproof_lab.pages import function_name, page
from batchproof_lab.suite_run import Effort, own_failures, process_laboratory, run_suite
from batchproof_lab.worker_pool import LostTask

PROFILE = "thorough"
TIME_LIMIT_S = 120.0  # cores are shared with other workers, and an honest engine ends anyway
MOST_TASKS = 1_000_000  # of one --seed in one dtype
LARGE_EXAMPLES = 100  # with as many, the tests of scale take the sizes of the profile thorough
LARGE_SHARE = 1 / 4  # of the tasks of these tests

MODELS = tuple(name for name in EMBEDDED if name != NAN_MODEL)


@dataclass(frozen=True)
class HonestCounts:
    """What was judged: tasks, workloads, answers and tokens."""

    tasks: int = 0  # one engine, model, dtype and test each
    workloads: int = 0
    answers: int = 0
    tokens: int = 0
    near_ties: int = 0

    def __add__(self, other: "HonestCounts") -> "HonestCounts":
        return HonestCounts(*map(add, astuple(self), astuple(other)))


CountsByDtype = Mapping[str, HonestCounts]


@dataclass(frozen=True)
class FalseAlarm:
    """A failure of an engine that is honest. `report` is the whole report, for people."""

    engine: str
    model: str
    dtype: str
    test: str
    seed: int
    report: str


@dataclass(frozen=True)
class RightAlarm:
    """An alarm about an engine that had a bug of its own, and `why`, as records of former runs name
    them."""

    alarm: FalseAlarm
    why: str


@dataclass(frozen=True)
class HonestRun:
    """One run of the command, which judges workloads of its own seed."""

    made: Provenance
    is_complete: bool  # all workloads that were wanted have been judged
    seed: int
    wanted: int  # workloads in each dtype
    examples_per_task: int
    workloads: int  # judged, in all dtypes


@dataclass(frozen=True)
class HonestRecord:
    """Campaigns against false alarms, added up over runs of different seeds."""

    made: Provenance
    runs: tuple[HonestRun, ...]
    totals: CountsByDtype
    engines: Mapping[str, CountsByDtype]
    models: Mapping[str, CountsByDtype]
    tests: Mapping[str, CountsByDtype]
    alarms: tuple[FalseAlarm, ...]
    right: tuple[RightAlarm, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Returns whether no run was stopped early."""
        return all(run.is_complete for run in self.runs)


HONEST = FileKind("table of honest engines", "batchproof.honest", 2, HonestRecord)


@dataclass(frozen=True, slots=True)
class HonestTask:
    """One engine, model, dtype, seed and test. `function` is a conformance test, by its node id
    without parameters."""

    engine: str
    model: str
    dtype: str
    function: str
    seed: int
    num_examples: int

    @property
    def key(self) -> str:
        return f"{self.engine} on {self.model} in {self.dtype}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class HonestOutcome:
    """What a task counted. `alarms` holds whole reports."""

    task: HonestTask
    counts: HonestCounts
    alarms: tuple[str, ...] = ()


def judge_honest(task: HonestTask) -> HonestOutcome:
    """Runs the suite on an honest engine. Failures are shrunk, because a person reads an alarm."""
    effort = Effort(profile=PROFILE, max_examples=task.num_examples, shrinks=True)
    arguments = [f"{ROOT / task.function}", f"--model={task.model}", f"--hypothesis-seed={task.seed}"]
    findings = run_suite(task.engine, arguments, process_laboratory(task.dtype, TIME_LIMIT_S), effort)
    broken = [each.report for each in findings.catches if each.broken is not None]
    alarms = (*broken, *own_failures(findings))
    if alarms:  # their workloads are mostly steps of shrinking, and count for nothing
        return HonestOutcome(task, HonestCounts(tasks=1), alarms)
    return HonestOutcome(
        task,
        HonestCounts(
            tasks=1,
            workloads=findings.totals["num_workloads"],
            answers=findings.totals["num_requests"],
            tokens=findings.totals["num_steps"],
            near_ties=findings.totals["num_near_ties"],
        ),
    )


@dataclass(frozen=True)
class HonestPlan:
    """What is asked: so many workloads in each dtype of one seed.

    In each dtype the tasks are one sequence, which follows from the seed alone; it ends once enough
    workloads are judged. So more workloads go on where fewer stopped.
    """

    engines: Sequence[str]
    dtypes: Sequence[str]
    tests: Sequence[str]  # names of functions
    seed: int
    num_examples: int
    wanted: int

    def tasks(self, found: Mapping[str, HonestOutcome]) -> Iterator[HonestTask]:
        """Yields tasks without an outcome, of all dtypes in turn, until enough is judged in each."""
        sequences = {dtype: self.sequence(dtype) for dtype in self.dtypes}
        while waiting := [each for each in self.dtypes if self._judged(each, found) < self.wanted]:
            for dtype in waiting:
                yield next(task for task in sequences[dtype] if task.key not in found)

    def is_complete(self, found: Mapping[str, HonestOutcome]) -> bool:
        return all(self._judged(dtype, found) >= self.wanted for dtype in self.dtypes)

    def _judged(self, dtype: str, found: Mapping[str, HonestOutcome]) -> int:
        return sum(each.counts.workloads for each in found.values() if each.task.dtype == dtype)

    def sequence(self, dtype: str) -> Iterator[HonestTask]:
        """Yields the tasks of a dtype, each drawn by its own seed. Raises `UsageError` at the end."""
        facts_of = conformance_functions()
        tests = [each for each in facts_of if function_name(each) in self.tests]
        for place in range(MOST_TASKS):
            seed = self.seed * MOST_TASKS + place + 1
            rng = random.Random(f"{seed} {dtype}")
            engine, model, test = map(rng.choice, (self.engines, MODELS, tests))
            facts = facts_of[test]
            is_large = "long_model" in facts.marks and rng.random() < LARGE_SHARE
            examples = LARGE_EXAMPLES if is_large else self.num_examples
            yield HonestTask(engine, facts.on_model or model, dtype, test, seed, examples)
        raise UsageError(
            f"--workloads {self.wanted} takes more than the {MOST_TASKS} tasks of a --seed"
        )


def honest_engines() -> list[str]:
    """Returns the names of all engines that keep every promise: the built-in ones and the oddities."""
    return [*BY_DEFAULT, *(f"{ODD_PREFIX}{name}" for name in oddities())]


def sweeping_tests() -> list[str]:
    """Returns the names of the tests that draw or sweep their workloads, as scenes and those of scale
    and of NaN do."""
    marks = {"long_model", "on_model", "quick_models"}
    every = conformance_functions().items()
    return [
        function_name(node_id)
        for node_id, facts in every
        if facts.is_generated or not facts.marks.isdisjoint(marks)
    ]


Table = dict[str, dict[str, HonestCounts]]  # name -> dtype -> what was counted
Counts = TypeVar("Counts")
RULE_OF_THREE = -math.log(0.05)  # no event in n trials: 95 % confidence that its rate is below 3.0 / n
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
    parser.add_argument(
        "--tests", metavar="T,T", help="functions of tests/conformance (default: all that draw)"
    )
    choices.add_count(
        parser,
        "--examples",
        20,
        "examples of a property test in one task; with fewer, more engines, models and tests meet",
    )
    choices.add_seed(parser, 0)
    choices.add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if there was no alarm, else 1. Partial or interrupted runs are written to
    `honest-partial.*`. Raises `UsageError`."""
    known = honest_engines()
    engines = choices.select_names(arguments.engines, known, "honest engine", "results/honest.md")
    dtypes = choices.select_names(arguments.dtype.split(","), DTYPES, "dtype")
    asked = arguments.tests.split(",") if arguments.tests else None
    tests = choices.select_names(asked, sweeping_tests(), "test that draws its workloads")
    plan = HonestPlan(engines, dtypes, tests, arguments.seed, arguments.examples, arguments.workloads)
    state: CampaignState[HonestOutcome] = CampaignState(HonestOutcome)
    total = plan.wanted * len(plan.dtypes)

    def lost_outcome(task: HonestTask, lost: LostTask) -> HonestOutcome:
        num_lost = 1 + sum(not each.counts.tasks for each in state.outcomes.values())
        if num_lost > MOST_LOST:
            raise BatchproofError(f"{num_lost} tasks were lost, the last because {lost.why}")
        return HonestOutcome(task, HonestCounts(), (lost.why,))  # an alarm: nothing was judged

    # How many workloads are wanted determines no task.
    question = Question("honest", repr(replace(plan, wanted=0)), code_digest())
    campaign = Campaign(
        question=question,
        state=state,
        function=judge_honest,
        lost_outcome=lost_outcome,
        progress=Progress("honest", "workload", total),
        size_of=attrgetter("counts.workloads"),
    )
    return campaign.run(
        arguments,
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
    judged: Counter[int] = Counter()
    for key, place in state.sitting_of.items():
        judged[place] += state.outcomes[key].counts.workloads
    is_complete = plan.is_complete(state.outcomes)
    for place, made in enumerate(state.sittings):
        asked = (plan.seed, plan.wanted, plan.num_examples)
        yield HonestRun(made, is_complete, *asked, judged[place])


def write_record(record: HonestRecord, output: Path) -> int:
    """Writes the record and its page, and prints the alarms; returns 1 if there are any, else 0. It is
    whole if no run was stopped and all honest engines and all tests were judged."""
    has_all = set(record.engines) >= set(honest_engines())
    has_all &= set(map(function_name, record.tests)) >= set(sweeping_tests())
    is_whole = record.is_complete and has_all
    write_result(HONEST, record, honest_page, output, "honest", is_whole)
    if record.alarms:
        print(f"{len(record.alarms)} alarms:", *(each.report for each in record.alarms), sep="\n\n")
    return 1 if record.alarms else 0


def honest_page(record: HonestRecord) -> str:
    judged = sum(each.workloads for each in record.totals.values())
    fixed = {"columns": COLUMNS, "rule_of_three": RULE_OF_THREE}
    return page("honest", record=record, judged=judged, **fixed)
