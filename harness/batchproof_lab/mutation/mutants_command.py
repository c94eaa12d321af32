"""`batchproof lab mutants ENGINE...`: random one-point mutants of an engine before the suite.

A run is a file of `results/mutants/`: the mutants that were drawn, and what the journals hold of them.
People judge the survivors of all runs in `judged.yaml` beside them; without an engine the command
renews the page alone.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.errors import BatchproofError, UsageError
from batchproof.models.embedded import EMBEDDED
from batchproof.places import ROOT
from batchproof.records.campaign import Question
from batchproof.records.file_kinds import replace_text
from batchproof.records.mutants import MUTANTS, MutantRecord, MutantsRecord
from batchproof_lab.conformance_modules import conformance_functions
from batchproof_lab.fingerprint import code_digest
from batchproof_lab.found import Found
from batchproof_lab.mutation.drawing import baseline, drawn, points_of, sources_of
from batchproof_lab.mutation.judged import Judgement, judgements, open_survivors
from batchproof_lab.mutation.mutant_task import (
    QUICK_TESTS,
    BaselineTask,
    MutantFate,
    MutantTask,
    judge_mutant,
)
from batchproof_lab.mutation.mutants_page import mutants_page
from batchproof_lab.options import add_options
from batchproof_lab.work import Work
from batchproof_lab.worker_pool import LostTask

QUICKLY = " (quick tests)"
QUICK_PASS = "the quick tests pass"  # of a mutant that waits for all others


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choices.add_engines(
        parser,
        "as for --engine; several are configurations of one source, and a mutant is killed by "
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
    choices.add_count(
        parser, "--mutants", 100, "how many, drawn at random among the points that the suite reaches"
    )
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="default: as without --model"
    )
    parser.add_argument("--name", default="mutants", help="of the run's file (default: %(default)s)")
    # A call of the engine has a limit of its own: that of a mutant is far beyond any run of the suite.
    add_options(parser, seed=1, time_limit=(3600.0, "a mutant counts as hung"))


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if each mutant of all runs was tried, each survivor is judged and none is a hole, else
    1. Raises `UsageError`."""
    folder = choices.writable(arguments.output / "mutants")
    judgements(folder)  # what is wrong there is said before the work
    return _hunt(arguments, folder) if arguments.engines else conclude(folder)


def conclude(folder: Path) -> int:
    """Writes the page of all runs and prints what remains to be done; returns 0 if nothing, else 1."""
    judged, runs = judgements(folder), recorded(folder)
    replace_text(folder / "README.md", mutants_page(runs, judged))
    still_open = list(open_survivors(runs.values(), judged))
    print(*still_open, sep="\n", end="\n" if still_open else "")
    return 1 if still_open else 0


def recorded(folder: Path) -> dict[str, MutantsRecord]:
    """Returns the runs in a folder by name. Raises `UsageError` for a file that is damaged."""
    return {path.stem: MUTANTS.read(path) for path in sorted(folder.glob("*.json"))}


def _hunt(arguments: argparse.Namespace, folder: Path) -> int:
    """Tries the mutants, each by a few quick tests and then, if these miss it, by all."""
    path, engines = folder / f"{arguments.name}.json", tuple(arguments.engines)
    models = tuple(
        choices.select_names(arguments.model, EMBEDDED, "embedded model") if arguments.model else ()
    )
    suite = BaselineTask(engines, sources_of(engines, arguments.source), arguments.seed, models)
    is_new = arguments.anew or not path.exists()
    if is_new:
        MUTANTS.write(drawn(suite, arguments.mutants), path)
    drawing, points = _drawing(path, suite), points_of(suite.sources)
    judged = judgements(folder)
    found: Found[MutantRecord] = Found(MutantRecord)
    work = Work(
        question=Question("mutants", _asked(drawing, arguments), code_digest(suite.sources)),
        found=found,
        key=_key,
        function=judge_mutant,
        outcome_of=partial(_row, drawing),
        progress=Progress("mutants", "attempt", 0, arguments.progress),
    )

    @cache
    def num_passed() -> tuple[int, ...]:
        # The suite may have grown since the mutants were drawn.
        return drawing.num_passed if is_new else baseline(suite).num_passed

    def tasks() -> Iterator[MutantTask]:
        share = replace(drawing, mutants=arguments.shard.of(drawing.mutants))
        left = _left(share, found.outcomes, judged)
        gone = [row.name for row in left if row.name not in points]
        if gone:
            raise UsageError(f"'{path}': the source has changed, {gone[0]!r} is no mutant any more")
        quick = [row for row in left if row.report != QUICK_PASS]
        work.progress.expect(len(quick or left))
        for row in quick or left:
            order = _order([*drawing.mutants, *found.outcomes.values()], bool(quick))
            yield MutantTask(points[row.name], suite, num_passed(), order, bool(quick))

    return work.run(
        arguments,
        arguments.time_limit,
        tasks,
        lambda: merge(work.question.asked, found, arguments.output),
    )


def merge(asked: Mapping[str, Any], found: Found[MutantRecord], output: Path) -> int:
    """Writes the run with what the journals hold of its mutants, and concludes as the command does."""
    path = output / "mutants" / f"{asked['name']}.json"
    drawing = MUTANTS.read(path)
    made = replace(
        drawing.made, sittings=tuple(dict.fromkeys((*drawing.made.sittings, *found.lines())))
    )
    rows = tuple(_known(row, found.outcomes) for row in drawing.mutants)
    MUTANTS.write(replace(drawing, made=made, mutants=rows), path)
    return conclude(path.parent)


def _known(row: MutantRecord, outcomes: Mapping[str, MutantRecord]) -> MutantRecord:
    return outcomes.get(row.name) or outcomes.get(row.name + QUICKLY) or row


def _asked(drawing: MutantsRecord, arguments: argparse.Namespace) -> dict[str, object]:
    """Returns the question: the names of all mutants. What is known of them does not matter."""
    names = tuple(row.name for row in drawing.mutants)
    asked = {"name": arguments.name, "engines": drawing.engines, "models": drawing.models}
    return asked | {"mutants": names, "time_limit": arguments.time_limit}


def _drawing(path: Path, suite: BaselineTask) -> MutantsRecord:
    record = MUTANTS.read(path)
    before = (record.engines, record.models, record.seed)
    now = (suite.engines, suite.models, suite.seed)
    if before != now:
        what = "engines, models and seed"
        raise UsageError(
            f"'{path}' is of {what} {before}, but this run of {now}: give --anew or --name"
        )
    return record


def _left(
    drawing: MutantsRecord, outcomes: Mapping[str, MutantRecord], judged: Mapping[str, Judgement]
) -> list[MutantRecord]:
    """Returns the mutants to try, first those of which nothing is known: those that wait, and the
    survivors judged as holes, unless the journal holds them: it is of today's suite."""
    holes = {name for name, each in judged.items() if each.judgement == "hole"}
    rows = [_known(row, outcomes) for row in drawing.mutants if row.name not in outcomes]
    left = [
        row
        for row in rows
        if row.outcome == "waiting" or (row.outcome == "survived" and row.name in holes)
    ]
    return sorted(left, key=lambda row: row.name in judged)


def _key(task: MutantTask) -> str:
    return f"{task.mutant.name(ROOT)}{QUICKLY if task.is_quick else ''}"


def _order(rows: Iterable[MutantRecord], is_quick: bool) -> tuple[str, ...]:
    """Returns the test functions that run first: those that have killed most; in a whole run the quick
    ones, which the mutant has passed already, come last."""
    killers = Counter(row.killed_by for row in rows if row.killed_by)
    by_number = [name for name, _ in killers.most_common()]
    if is_quick:
        return tuple(by_number)
    names = dict.fromkeys((*by_number, *conformance_functions()))
    return tuple(name for name in names if not name.endswith(QUICK_TESTS))


def _row(drawing: MutantsRecord, task: MutantTask, fate: MutantFate | LostTask) -> MutantRecord:
    """Returns the row of a mutant. One that the quick tests miss waits for all others."""
    row = next(row for row in drawing.mutants if row.name == task.mutant.name(ROOT))
    if isinstance(fate, LostTask):
        if fate.has_raised:  # a suite run reports what a mutant raises, so this is none of its doing
            raise BatchproofError(f"{row.name}: {fate.why}")
        outcome = "hung" if fate.why.startswith("no result") else "died"
        return replace(row, outcome=outcome, report=fate.why)
    if fate.killed_by is None and task.is_quick:
        return replace(row, outcome="waiting", report=QUICK_PASS)
    return replace(
        row,
        outcome="survived" if fate.killed_by is None else "killed",
        killed_by=fate.killed_by,
        promise=fate.promise,
        report=fate.report,
        seconds=fate.seconds,
    )
