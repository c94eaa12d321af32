"""One mutant before the conformance suite: the task of a worker, and what came out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from batchproof.campaign.conformance_modules import function_of
from batchproof.campaign.mutation.mutant import Mutant
from batchproof.campaign.mutation.mutated_import import mutated
from batchproof.campaign.mutation.reach import Statements, statements_noted
from batchproof.campaign.shared_laboratory import process_laboratory
from batchproof.campaign.suite_outcome import Effort, SuiteOutcome
from batchproof.campaign.suite_run import run_suite

CALL_LIMIT_S = 5.0  # an honest call takes a fraction of a second
EFFORT = Effort(profile="default")


@dataclass(frozen=True, slots=True)
class BaselineTask:
    """Runs the suite on the engines, each on each group of models. `sources` are their files and
    folders."""

    engines: tuple[str, ...]
    model_groups: tuple[tuple[str, ...], ...]
    sources: tuple[Path, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class MutantTask:
    """Does the same with one mutant, until a test fails.

    `num_passed` are the tests that the unchanged engines pass, run by run; a mutant that passes fewer
    has lost a capability or a model, which the table of a run shows.
    """

    mutant: Mutant
    suite: BaselineTask
    num_passed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MutantFate:
    """What the suite reported. `killed_by` is the first test that failed; None: the mutant survived."""

    killed_by: str | None = None
    promise: str | None = None  # that the failure names
    report: str = ""  # the first line


def judge_mutant(task: MutantTask) -> MutantFate:
    """Runs the suite on one mutant."""
    for (engine, models), num_expected in zip(_runs(task.suite), task.num_passed, strict=True):
        with mutated(task.mutant, task.suite.sources):
            found = _suite(engine, models, task.suite.seed)
        fate = _fate(found, num_expected)
        if fate.killed_by is not None:
            return fate
    return MutantFate()


def _fate(found: SuiteOutcome, num_expected: int) -> MutantFate:
    if found.catches:
        first = found.first or found.catches[0]
        said = first.headline or _last_line(first.report)
        return MutantFate(function_of(first.test), first.broken, said)
    if found.num_skipped and not found.num_passed:
        return MutantFate("the table of the run", None, "no test runs: the engine refuses its models")
    if found.exit_status:
        return MutantFate("before the first test", None, _last_line(found.output))
    if found.num_passed < num_expected:
        lost = f"{num_expected - found.num_passed} of {num_expected} tests do not run"
        return MutantFate("the table of the run", None, lost)
    return MutantFate()


def _last_line(report: str) -> str:
    return next((each for each in reversed(report.splitlines()) if each.strip()), "").strip()[:200]


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the unchanged engines do: tests passed, run by run, failures, and statements executed."""

    num_passed: tuple[int, ...]
    failures: tuple[str, ...]
    statements: Statements


def judge_baseline(task: BaselineTask) -> Baseline:
    """Runs the suite on each engine and group of models."""
    with statements_noted(task.sources) as statements:
        runs = _runs(task)
        found = [_suite(*run, task.seed) for run in runs]
    failures = tuple(_fate(each, 0) for each in found if each.exit_status)
    return Baseline(
        tuple(each.num_passed for each in found),
        tuple(f"{each.killed_by}: {each.report}" for each in failures),
        statements,
    )


def _runs(task: BaselineTask) -> Iterator[tuple[str, tuple[str, ...]]]:
    for models in task.model_groups:  # all engines on the quick models first
        for engine in task.engines:
            yield engine, models


def _suite(engine: str, models: tuple[str, ...], seed: int) -> SuiteOutcome:
    on = (f"--model={each}" for each in models)
    arguments = ["-x", f"--hypothesis-seed={seed}", "--diagnose-for=0", *on]
    return run_suite(engine, arguments, process_laboratory("float32", CALL_LIMIT_S), EFFORT)
