"""`batchproof mutants ENGINE...`: random one-point mutants of an engine before the suite.

A mutant that survives is judged by a person, in `mutants_judged.yaml` beside the table.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from batchproof.campaign.kill_table import QUICK_FIRST
from batchproof.campaign.mutation.judged import Judgement, judgements
from batchproof.campaign.mutation.mutant import Mutant
from batchproof.campaign.mutation.mutant_task import (
    Baseline,
    BaselineTask,
    MutantFate,
    MutantTask,
    judge_baseline,
    judge_mutant,
)
from batchproof.campaign.mutation.mutants_page import mutants_page
from batchproof.campaign.mutation.operators import mutants_of
from batchproof.campaign.worker_pool import LostTask, WorkerPool
from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.cli.result_files import write_result
from batchproof.errors import UsageError
from batchproof.models.embedded import EMBEDDED
from batchproof.places import ROOT
from batchproof.records.made import made_now
from batchproof.records.mutants import MUTANTS, MutantRecord, MutantsRecord
from batchproof.run.registry import resolve_engine, source_of

QUICK = QUICK_FIRST[:2]  # absolute positions; RoPE and a window
BASELINE_LIMIT_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `batchproof mutants`."""
    parser.add_argument(
        "engines",
        nargs="+",
        metavar="ENGINE",
        help="as for --engine; several are configurations of one source, and a mutant is killed by any",
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
    parser.add_argument("--model", action="append", metavar="NAME", help="default: all embedded models")
    parser.add_argument(
        "--seed", type=choices.whole, default=1, metavar="S", help="of drawing and of the suite's tests"
    )
    parser.add_argument(
        "--time-limit",
        type=choices.seconds,
        default=120.0,
        metavar="S",
        help="seconds for one mutant; one that needs more is hung (default: %(default)g)",
    )
    parser.add_argument(
        "--name", default="mutants", help="of the files in --output (default: %(default)s)"
    )
    choices.add_common(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if each survivor is judged and none is a hole, else 1. Raises `UsageError`."""
    engines = tuple(arguments.engines)
    sources = tuple(arguments.source) or tuple({source_of(resolve_engine(each)) for each in engines})
    sources = tuple(each.resolve() for each in sources)
    points = [each for path in _files(sources) for each in mutants_of(path)]
    models = choices.chosen(arguments.model, EMBEDDED, "embedded model")
    output = choices.writable(arguments.output)
    judged = judgements(output / f"{arguments.name}_judged.yaml")
    task = BaselineTask(engines, _groups(models), sources, arguments.seed)
    baseline = _baseline(task)
    reached = [each for each in points if (str(each.path), each.statement) in baseline.statements]
    drawn = random.Random(arguments.seed).sample(reached, min(arguments.mutants, len(reached)))
    tasks = [MutantTask(each, task, baseline.num_passed) for each in drawn]
    records: list[MutantRecord] = []
    try:
        for mutant, fate in _judged(tasks, arguments):
            records.append(_record(mutant, fate, judged))
    finally:  # whatever stopped it: hours of work are kept
        record = MutantsRecord(
            made_now(),
            len(records) == len(drawn),
            engines,
            tuple(_shown(each) for each in sources),
            tuple(models),
            arguments.seed,
            len(points),
            len(points) - len(reached),
            tuple(sorted(records, key=lambda each: (each.path, each.line, each.name))),
        )
        write_result(MUTANTS, record, mutants_page, output, arguments.name, record.is_complete)
    return _conclude(record)


def _groups(models: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Returns the models that are quick and the others: most mutants never meet the others."""
    quick = tuple(each for each in models if each in QUICK)
    return tuple(filter(None, (quick, tuple(each for each in models if each not in QUICK))))


def _judged(
    tasks: Sequence[MutantTask], arguments: argparse.Namespace
) -> Iterator[tuple[Mutant, MutantFate | LostTask]]:
    """Yields each mutant with its fate, and shows the progress."""
    progress = Progress("mutants", "mutant", len(tasks), arguments.progress)
    num_survivors = 0
    try:
        with WorkerPool(arguments.jobs, arguments.time_limit) as pool:
            for task, fate in pool.run(judge_mutant, tasks):
                num_survivors += isinstance(fate, MutantFate) and fate.killed_by is None
                progress.step(1, f"{num_survivors} survived")
                yield task.mutant, fate
    finally:
        progress.close()


def _files(sources: Iterable[Path]) -> list[Path]:
    """Returns the Python files. Raises `UsageError` for a source that holds none."""
    found = []
    for source in sources:
        files = [source] if source.suffix == ".py" else sorted(source.rglob("*.py"))
        if not all(each.is_file() for each in files) or not files:
            raise UsageError(f"--source '{source}' is neither a Python file nor a folder with one")
        found += files
    return found


def _baseline(task: BaselineTask) -> Baseline:
    """Returns what the unchanged engines do. Raises `UsageError` unless they pass."""
    with WorkerPool(1, BASELINE_LIMIT_S) as pool:
        _, found = next(iter(pool.run(judge_baseline, [task])))
    if isinstance(found, LostTask):
        raise UsageError(f"the unchanged engines cannot be judged: {found.why}")
    if found.failures:
        raise UsageError(f"the unchanged engines do not pass the suite: {found.failures[0]}")
    return found


def _record(mutant: Mutant, fate: MutantFate | LostTask, judged: dict[str, Judgement]) -> MutantRecord:
    record = MutantRecord(
        mutant.name(ROOT), _shown(mutant.path), mutant.line, mutant.before, mutant.after, "survived"
    )
    if isinstance(fate, LostTask):
        outcome = "hung" if fate.why.startswith("no result") else "died"
        return replace(record, outcome=outcome, report=fate.why)
    if fate.killed_by is not None:
        return replace(
            record,
            outcome="killed",
            killed_by=fate.killed_by,
            promise=fate.promise,
            report=fate.report,
        )
    judgement = judged.get(record.name)
    return replace(record, judgement=judgement.judgement, why=judgement.why) if judgement else record


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _conclude(record: MutantsRecord) -> int:
    open_ones = [
        each
        for each in record.mutants
        if each.outcome == "survived" and each.judgement in (None, "hole")
    ]
    for each in open_ones:
        print(f"survived, {each.judgement or 'not judged'}: {each.name}")
    return 1 if open_ones else 0
