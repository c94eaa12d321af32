"""`batchproof mutants ENGINE...`: random one-point mutants of an engine before the suite.

A run is a file of `results/mutants/`, written after each mutant. People judge the survivors of all
runs in `judged.yaml` beside them; without an engine the command renews the page alone.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from batchproof.campaign.conformance_modules import conformance_functions
from batchproof.campaign.mutation.drawing import drawn, points_of, sources_of
from batchproof.campaign.mutation.judged import judgements, open_survivors
from batchproof.campaign.mutation.mutant_task import (
    QUICK_TESTS,
    BaselineTask,
    MutantFate,
    MutantTask,
    judge_mutant,
)
from batchproof.campaign.mutation.mutants_page import mutants_page
from batchproof.campaign.worker_pool import LostTask, WorkerPool
from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.errors import BatchproofError, UsageError
from batchproof.models.embedded import EMBEDDED
from batchproof.places import ROOT
from batchproof.records.file_kinds import replace_text
from batchproof.records.mutants import MUTANTS, MutantRecord, MutantsRecord

QUICK_PASS = "the quick tests pass"  # of a mutant that waits for all others


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `batchproof mutants`."""
    parser.add_argument(
        "engines",
        nargs="*",
        metavar="ENGINE",
        help="as for --engine; several are configurations of one source, and a mutant is killed by "
        "any; none: the page is written anew from the files, with the judgements of today",
    )
    parser.add_argument(
        "--source",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="file or folder to mutate (default: the module of each engine's factory, or its package)",
    )
    parser.add_argument(
        "--mutants",
        type=choices.positive,
        default=100,
        metavar="N",
        help="how many, drawn at random among the points that the suite reaches (default: %(default)s)",
    )
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="default: as without --model"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the run of this name: mutants that wait, and survivors judged as holes",
    )
    parser.add_argument(
        "--seed", type=choices.whole, default=1, metavar="S", help="of drawing and of the suite's tests"
    )
    parser.add_argument(
        "--time-limit",
        type=choices.seconds,
        default=3600.0,
        metavar="S",
        help="seconds for one mutant; one that needs more is hung. A call of the engine has a limit of "
        "its own, so this one is far beyond any run of the suite (default: %(default)g)",
    )
    parser.add_argument("--name", default="mutants", help="of the run's file (default: %(default)s)")
    choices.add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if each mutant of all runs was tried, each survivor is judged and none is a hole, else
    1. Raises `UsageError`."""
    folder = choices.writable(arguments.output / "mutants")
    judgements(folder)  # what is wrong there is said before the work
    if arguments.engines:
        _hunt(arguments, folder)
    judged, runs = judgements(folder), recorded(folder)
    replace_text(folder / "README.md", mutants_page(runs, judged))
    still_open = list(open_survivors(runs.values(), judged))
    for line in still_open:
        print(line)
    return 1 if still_open else 0


def recorded(folder: Path) -> dict[str, MutantsRecord]:
    """Returns the runs in a folder by name. Raises `UsageError` for a file that is damaged."""
    return {path.stem: MUTANTS.read(path) for path in sorted(folder.glob("*.json"))}


def _hunt(arguments: argparse.Namespace, folder: Path) -> None:
    """Tries the mutants, each by a few quick tests and then, if these miss it, by all. Writes the run
    after each."""
    path, engines = folder / f"{arguments.name}.json", tuple(arguments.engines)
    models = tuple(
        choices.chosen(arguments.model, EMBEDDED, "embedded model") if arguments.model else ()
    )
    task = BaselineTask(engines, sources_of(engines, arguments.source), arguments.seed, models)
    record = _resumed(path, task, folder) if arguments.resume else drawn(task, arguments.mutants)
    points = points_of(task.sources)
    gone = [row.name for row in record.mutants if row.outcome == "waiting" and row.name not in points]
    if gone:
        raise UsageError(f"--resume: the source has changed, {gone[0]!r} is no mutant of it any more")
    rows, judged = {row.name: row for row in record.mutants}, judgements(folder)
    for is_quick in (True, False):
        MUTANTS.write(replace(record, mutants=tuple(rows.values())), path)
        waiting = [row for row in rows.values() if row.outcome == "waiting"]
        waiting = [row for row in waiting if not (is_quick and row.report == QUICK_PASS)]
        waiting.sort(key=lambda row: row.name in judged)  # first those of which nothing is known
        killers = Counter(row.killed_by for row in rows.values() if row.killed_by)
        tasks = (
            MutantTask(points[row.name], task, record.num_passed, _order(killers, is_quick), is_quick)
            for row in waiting
        )
        for name, fate in _judged(tasks, len(waiting), arguments):
            if is_quick and isinstance(fate, MutantFate) and fate.killed_by is None:
                rows[name] = replace(rows[name], report=QUICK_PASS)
            else:
                rows[name] = _row(rows[name], fate)
                killers.update(filter(None, [rows[name].killed_by]))
            MUTANTS.write(replace(record, mutants=tuple(rows.values())), path)


def _resumed(path: Path, task: BaselineTask, folder: Path) -> MutantsRecord:
    record = MUTANTS.read(path)
    before = (record.engines, record.models, record.seed)
    now = (task.engines, task.models, task.seed)
    if before != now:
        what = "engines, models and seed"
        raise UsageError(f"--resume: '{path}' is of {what} {before}, but this run of {now}")
    holes = {name for name, each in judgements(folder).items() if each.judgement == "hole"}
    again = tuple(
        replace(row, outcome="waiting") if row.outcome == "survived" and row.name in holes else row
        for row in record.mutants
    )
    return replace(record, mutants=again)


def _judged(
    tasks: Iterable[MutantTask], num_tasks: int, arguments: argparse.Namespace
) -> Iterator[tuple[str, MutantFate | LostTask]]:
    """Yields the name of each mutant with its fate, and shows the progress."""
    progress = Progress("mutants", "mutant", num_tasks, arguments.progress)
    try:
        with WorkerPool(arguments.jobs, arguments.time_limit) as pool:
            for task, fate in pool.run(judge_mutant, tasks):
                name = task.mutant.name(ROOT)
                progress.step(1, f"the last was {name}")
                yield name, fate
    finally:
        progress.close()


def _order(killers: Counter[str], is_quick: bool) -> tuple[str, ...]:
    """Returns the test functions that run first: those that have killed most; in a whole run the quick
    ones, which the mutant has passed already, come last."""
    by_number = [name for name, _ in killers.most_common()]
    if is_quick:
        return tuple(by_number)
    names = dict.fromkeys((*by_number, *conformance_functions()))
    return tuple(name for name in names if not name.endswith(QUICK_TESTS))


def _row(row: MutantRecord, fate: MutantFate | LostTask) -> MutantRecord:
    if isinstance(fate, LostTask):
        if fate.has_raised:  # a suite run reports what a mutant raises, so this is none of its doing
            raise BatchproofError(f"{row.name}: {fate.why}")
        outcome = "hung" if fate.why.startswith("no result") else "died"
        return replace(row, outcome=outcome, report=fate.why)
    return replace(
        row,
        outcome="survived" if fate.killed_by is None else "killed",
        killed_by=fate.killed_by,
        promise=fate.promise,
        report=fate.report,
        seconds=fate.seconds,
    )
