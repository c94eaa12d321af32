"""Which honest engine meets which test: the task of a worker, and any number of tasks of one seed.

In each dtype the tasks are one sequence, which follows from the seed alone; it ends once enough
workloads are judged. So more workloads go on where fewer stopped.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product

from batchproof.errors import UsageError
from batchproof.models.embedded import EMBEDDED, NAN_MODEL
from batchproof.places import ROOT
from batchproof.records.honest import HonestCounts
from batchproof.run.engine_names import BY_DEFAULT, ODD_PREFIX
from batchproof.run.registry import oddities
from batchproof_lab.conformance_modules import Facts, conformance_functions
from batchproof_lab.shared_laboratory import process_laboratory
from batchproof_lab.suite_run import Effort, own_failures, run_suite

PROFILE = "thorough"
TIME_LIMIT_S = 120.0  # cores are shared with other workers, and an honest engine ends anyway
MOST_TASKS = 1_000_000  # of one --seed in one dtype
LARGE_EXAMPLES = 100  # with as many, the tests of scale take the sizes of the profile thorough
LARGE_SHARE = 1 / 4  # of the tasks of these tests

MODELS = tuple(name for name in EMBEDDED if name != NAN_MODEL)

Meeting = tuple[str, str, str, bool]  # engine, model, test; whether a test of scale is large


@dataclass(frozen=True, slots=True)
class HonestTask:
    """One engine, model, dtype, seed and test. `function` is a conformance test, by its node id
    without parameters.
    """

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
    """What is asked: workloads in each dtype of one seed. The other fields make the question."""

    engines: Sequence[str]
    dtypes: Sequence[str]
    seed: int
    num_examples: int
    wanted: int
    models: Sequence[str] = MODELS

    @property
    def question(self) -> dict[str, object]:
        """Returns what determines each task: how many of them are wanted does not."""
        names = ("engines", "dtypes", "seed", "num_examples")
        return {name: getattr(self, name) for name in names} | {"models": [*self.models]}

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
        """Yields the tasks of a dtype, which differ in their seeds. Raises `UsageError` at the end."""
        meetings = (each for some in self._rounds(dtype) for each in some)
        for place, (engine, model, test, is_large) in zip(range(MOST_TASKS), meetings, strict=False):
            examples = LARGE_EXAMPLES if is_large else self.num_examples
            seed = self.seed * MOST_TASKS + place + 1
            yield HonestTask(engine, model, dtype, test, seed, examples)
        raise UsageError(
            f"--workloads {self.wanted} takes more than the {MOST_TASKS} tasks of a --seed"
        )

    def _rounds(self, dtype: str) -> Iterator[list[Meeting]]:
        """Yields round after round of all engines and models. Each time it comes up, an engine meets
        the next test of its own shuffled list."""
        rng = random.Random(f"{self.seed} {dtype}")
        facts_of = conformance_functions()
        is_free = tuple(self.models) == MODELS
        tests = [
            name
            for name, facts in facts_of.items()
            if _sweeps(facts) and (is_free or facts.on_model in (None, *self.models))
        ]
        decks = {engine: cycle(rng.sample(tests, len(tests))) for engine in self.engines}
        meetings = list(product(self.engines, self.models))
        while True:
            rng.shuffle(meetings)
            found = []
            for engine, model in meetings:
                test = next(decks[engine])
                marks = facts_of[test].marks
                is_large = "long_model" in marks and rng.random() < LARGE_SHARE
                found.append((engine, facts_of[test].on_model or model, test, is_large))
            yield found


def honest_engines() -> list[str]:
    """Returns the names of all engines that keep every promise: the built-in ones and the oddities."""
    return [*BY_DEFAULT, *(f"{ODD_PREFIX}{name}" for name in oddities())]


def _sweeps(facts: Facts) -> bool:
    """Returns whether the test draws or sweeps its workloads, as those of scale and of NaN do."""
    return facts.is_generated or not facts.marks.isdisjoint({"long_model", "on_model"})
