"""One mutant before the conformance suite: the task of a worker, and what came out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from batchproof.places import ROOT
from batchproof.records.texts import without_machine_paths
from batchproof.run.registry import resolve_engine
from batchproof_lab.conformance_modules import function_of
from batchproof_lab.mutation.mutated_import import (
    Statements,
    compiled_otherwise,
    mutated,
    statements_noted,
)
from batchproof_lab.mutation.operators import Mutant
from batchproof_lab.shared_laboratory import process_laboratory
from batchproof_lab.suite_outcome import Effort, SuiteOutcome
from batchproof_lab.suite_run import run_suite

BEFORE = "before the first test"
CALL_LIMIT_S = 20.0  # an honest call takes a fraction of a second, on a busy machine several


@dataclass(frozen=True, slots=True)
class BaselineTask:
    """Runs the suite on each engine as `pytest --engine=ENGINE` does, with `--model` if there are
    models. `sources` are the engines' files and folders."""

    engines: tuple[str, ...]
    sources: tuple[Path, ...]
    seed: int
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MutantTask:
    """Does the same with one mutant, until a test fails.

    `num_passed` are the tests that each unchanged engine passes; a mutant that passes fewer has lost a
    capability or a model, which the table of a run shows. The test functions `first` run first.
    """

    mutant: Mutant
    suite: BaselineTask
    num_passed: tuple[int, ...]
    first: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What identifies the task within its question."""
        return self.mutant.name(ROOT)


@dataclass(frozen=True, slots=True)
class MutantFate:
    """What the suite reported. `killed_by` is the first test that failed; None: the mutant survived."""

    killed_by: str | None = None
    promise: str | None = None  # that the failure names
    report: str = ""  # the first line
    seconds: float = 0.0


def judge_mutant(task: MutantTask) -> MutantFate:
    began, fate = time.monotonic(), MutantFate()
    for engine, num_expected in zip(task.suite.engines, task.num_passed, strict=True):
        if fate.killed_by is None:
            with mutated(task.mutant, task.suite.sources):
                found = _suite(engine, task.suite, task.first)
            fate = _fate(found, num_expected)
            if fate.killed_by == BEFORE:
                _require_loadable(engine, task.suite)
    return replace(fate, seconds=round(time.monotonic() - began, 1))


def _require_loadable(engine: str, suite: BaselineTask) -> None:
    """Raises what the unchanged engine raises when it is imported again. A process in which that fails
    would count every mutant as killed."""
    with compiled_otherwise(suite.sources, lambda _: None):
        resolve_engine(engine)


def _fate(found: SuiteOutcome, num_expected: int) -> MutantFate:
    if found.catches:
        first = found.first or found.catches[0]
        said = first.headline or _last_line(first.report)
        return MutantFate(function_of(first.test), first.broken, without_machine_paths(said))
    if found.num_skipped and not found.num_passed:
        return MutantFate("the table of the run", None, "no test runs: the engine refuses its models")
    if found.exit_status:
        return MutantFate(BEFORE, None, _last_line(found.output))
    if found.num_passed < num_expected:
        lost = f"{num_expected - found.num_passed} of {num_expected} tests do not run"
        return MutantFate("the table of the run", None, lost)
    return MutantFate()


def _last_line(report: str) -> str:
    last = next((each for each in reversed(report.splitlines()) if each.strip()), "")
    return without_machine_paths(last.strip())[:200]


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the unchanged engines do: tests that each passes, failures, and statements executed."""

    num_passed: tuple[int, ...]
    failures: tuple[str, ...] = ()
    statements: Statements = field(default_factory=set)


def judge_baseline(task: BaselineTask) -> Baseline:
    with statements_noted(task.sources) as statements:
        found = [_suite(engine, task) for engine in task.engines]
    failures = [_fate(each, 0) for each in found if each.exit_status]
    return Baseline(
        tuple(each.num_passed for each in found),
        tuple(f"{each.killed_by}: {each.report}" for each in failures),
        statements,
    )


def _suite(engine: str, suite: BaselineTask, first: tuple[str, ...] = ()) -> SuiteOutcome:
    arguments = ["-x", f"--hypothesis-seed={suite.seed}", "--diagnose-for=0"]
    arguments += (f"--model={each}" for each in suite.models)
    effort = Effort(profile="default", first=first)
    return run_suite(engine, arguments, process_laboratory("float32", CALL_LIMIT_S), effort)
