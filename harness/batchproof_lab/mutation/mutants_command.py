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

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.errors import BatchproofError, UsageError
from batchproof.models.embedded import EMBEDDED
from batchproof.places import ROOT
from batchproof.records.file_kinds import replace_text
from batchproof_lab.campaign import Campaign, CampaignState, Question, add_options
from batchproof_lab.conformance_modules import conformance_functions
from batchproof_lab.fingerprint import code_digest
from batchproof_lab.mutation.mutant_task import (
    BaselineTask,
    MutantTask,
    judge_mutant,
)
from batchproof_lab.mutation.mutants_page import (
    MutantJudgement,
    judgements,
    mutants_page,
    open_survivors,
)
from batchproof_lab.mutation.sampling import baseline, points_of, sample_mutants, sources_of
from batchproof_lab.record_kinds import MUTANTS, MutantRecord, MutantsRecord
from batchproof_lab.worker_pool import LostTask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choices.add_engines(
        parser,
        "as for --engine; several are configurations of one source, and a mutant is killed by "
        "any; none: the page is written again from the files, with the judgements of today",
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
    """Tries the mutants of the run's file, which is made if it is new."""
    path, engines = folder / f"{arguments.name}.json", tuple(arguments.engines)
    models = tuple(
        choices.select_names(arguments.model, EMBEDDED, "embedded model") if arguments.model else ()
    )
    suite = BaselineTask(engines, sources_of(engines, arguments.source), arguments.seed, models)
    is_new = arguments.restart or not path.exists()
    if is_new:
        MUTANTS.write(sample_mutants(suite, arguments.mutants), path)
    sample, points = _known_sample(path, suite), points_of(suite.sources)
    judged = judgements(folder)
    state: CampaignState[MutantRecord] = CampaignState(MutantRecord)
    asked = {"name": arguments.name, "engines": sample.engines, "models": sample.models}
    asked |= {"mutants": tuple(row.name for row in sample.mutants)}
    campaign = Campaign(
        question=Question("mutants", asked, code_digest(suite.sources)),
        state=state,
        function=partial(_judged_row, sample),
        lost_outcome=partial(_lost_row, sample),
        progress=Progress("mutants", "attempt", 0, arguments.progress),
    )

    @cache
    def num_passed() -> tuple[int, ...]:
        # The suite may have grown since the mutants were drawn.
        return sample.num_passed if is_new else baseline(suite).num_passed

    def tasks() -> Iterator[MutantTask]:
        left = _left(sample, state.outcomes, judged)
        gone = [row.name for row in left if row.name not in points]
        if gone:
            raise UsageError(f"'{path}': the source has changed, {gone[0]!r} is no mutant any more")
        campaign.progress.expect(len(left))
        for row in left:
            order = _order([*sample.mutants, *state.outcomes.values()])
            yield MutantTask(points[row.name], suite, num_passed(), order)

    def finish() -> int:
        sittings = dict.fromkeys((*sample.made.sittings, *state.lines()))
        rows = tuple(state.outcomes.get(row.name, row) for row in sample.mutants)
        made = replace(sample.made, sittings=tuple(sittings))
        MUTANTS.write(replace(sample, made=made, mutants=rows), path)
        return conclude(folder)

    return campaign.run(arguments, arguments.time_limit, tasks, finish)


def _known_sample(path: Path, suite: BaselineTask) -> MutantsRecord:
    record = MUTANTS.read(path)
    before = (record.engines, record.models, record.seed)
    now = (suite.engines, suite.models, suite.seed)
    if before != now:
        what = "engines, models and seed"
        raise UsageError(
            f"'{path}' is of {what} {before}, but this run of {now}: give --restart or --name"
        )
    return record


def _left(
    sample: MutantsRecord, outcomes: Mapping[str, MutantRecord], judged: Mapping[str, MutantJudgement]
) -> list[MutantRecord]:
    """The mutants to try: untried ones first, then survivors judged to be holes that the journal of
    today's suite does not hold."""
    holes = {name for name, each in judged.items() if each.judgement == "hole"}
    rows = [row for row in sample.mutants if row.name not in outcomes]
    left = [
        row
        for row in rows
        if row.outcome == "waiting" or (row.outcome == "survived" and row.name in holes)
    ]
    return sorted(left, key=lambda row: row.name in judged)


def _order(rows: Iterable[MutantRecord]) -> tuple[str, ...]:
    """The test functions that run first: those that have killed most."""
    killers = Counter(row.killed_by for row in rows if row.killed_by)
    names = dict.fromkeys((*(name for name, _ in killers.most_common()), *conformance_functions()))
    return tuple(names)


def _row(sample: MutantsRecord, task: MutantTask) -> MutantRecord:
    return next(row for row in sample.mutants if row.name == task.mutant.name(ROOT))


def _judged_row(sample: MutantsRecord, task: MutantTask) -> MutantRecord:
    row, fate = _row(sample, task), judge_mutant(task)
    return replace(
        row,
        outcome="survived" if fate.killed_by is None else "killed",
        killed_by=fate.killed_by,
        promise=fate.promise,
        report=fate.report,
        seconds=fate.seconds,
    )


def _lost_row(sample: MutantsRecord, task: MutantTask, lost: LostTask) -> MutantRecord:
    row = _row(sample, task)
    if lost.has_raised:  # a suite run reports what a mutant raises, so this is none of its doing
        raise BatchproofError(f"{row.name}: {lost.why}")
    outcome = "hung" if lost.why.startswith("no result") else "died"
    return replace(row, outcome=outcome, report=lost.why)
