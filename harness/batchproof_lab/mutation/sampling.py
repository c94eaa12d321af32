"""The mutants of a run: a random sample of the points that the suite reaches."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from batchproof.errors import UsageError
from batchproof.places import ROOT
from batchproof.records.provenance import made_now
from batchproof.run.registry import resolve_engine, source_of
from batchproof_lab.mutation.mutant_task import Baseline, BaselineTask, judge_baseline
from batchproof_lab.mutation.operators import Mutant, mutants_of
from batchproof_lab.record_kinds import MutantRecord, MutantsRecord
from batchproof_lab.worker_pool import LostTask, WorkerPool

BASELINE_LIMIT_S = 3600.0


def sources_of(engines: Sequence[str], named: Iterable[Path]) -> tuple[Path, ...]:
    """Returns the files and folders to change: those named, else those of the engines' factories.
    Raises `UsageError` for an unknown engine."""
    sources = tuple(named) or tuple({source_of(resolve_engine(each)) for each in engines})
    return tuple(each.resolve() for each in sources)


def points_of(sources: Iterable[Path]) -> dict[str, Mutant]:
    """Returns all mutants of the sources by name. Raises `UsageError` for a source without a Python
    file."""
    return {each.name(ROOT): each for path in _files(sources) for each in mutants_of(path)}


def sample_mutants(task: BaselineTask, num_mutants: int) -> MutantsRecord:
    """Returns a run whose mutants are all waiting. Raises `UsageError` unless the unchanged engines
    pass the suite."""
    points = points_of(task.sources)
    today = baseline(task)
    reached = {
        name: each
        for name, each in points.items()
        if (str(each.path), each.statement) in today.statements
    }
    names = random.Random(task.seed).sample(sorted(reached), min(num_mutants, len(reached)))
    rows = (
        MutantRecord(name, _shown(each.path), each.line, each.before, each.after)
        for name, each in ((name, points[name]) for name in names)
    )
    return MutantsRecord(
        made_now(),
        task.engines,
        tuple(_shown(each) for each in task.sources),
        task.seed,
        today.num_passed,
        len(points),
        len(points) - len(reached),
        tuple(sorted(rows, key=lambda row: (row.path, row.line, row.name))),
        task.models,
    )


def _files(sources: Iterable[Path]) -> list[Path]:
    found = []
    for source in sources:
        files = [source] if source.suffix == ".py" else sorted(source.rglob("*.py"))
        if not all(each.is_file() for each in files) or not files:
            raise UsageError(f"--source '{source}' is neither a Python file nor a folder with one")
        found += files
    return found


def baseline(task: BaselineTask) -> Baseline:
    """Returns what the unchanged engines do today. Raises `UsageError` unless they pass the suite."""
    with WorkerPool(1, BASELINE_LIMIT_S) as pool:
        _, found = next(iter(pool.run(judge_baseline, [task])))
    if isinstance(found, LostTask):
        raise UsageError(f"the unchanged engines cannot be judged: {found.why}")
    if found.failures:
        raise UsageError(f"the unchanged engines do not pass the suite: {found.failures[0]}")
    return found


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
