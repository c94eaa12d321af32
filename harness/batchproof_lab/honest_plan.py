"""Decides which honest engine meets which test, for any number of workloads and sittings.

The workloads of a seed come in portions. In each dtype a portion is a chain of tasks, each of which
follows from the seed alone; it ends once its share of the workloads is judged. So what is judged does
not depend on timing or on interruptions, and more workloads go on where fewer stopped.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, product

from batchproof.errors import UsageError
from batchproof.models.embedded import EMBEDDED, NAN_MODEL
from batchproof.places import ROOT
from batchproof.records.honest import HonestCounts
from batchproof.run.registry import BY_DEFAULT, ODD_PREFIX, oddities
from batchproof_lab.conformance_modules import Facts, conformance_functions
from batchproof_lab.shared_laboratory import process_laboratory
from batchproof_lab.suite_run import Effort, own_failures, run_suite

PROFILE = "thorough"
TIME_LIMIT_S = 120.0  # cores are shared with other workers, and an honest engine ends anyway
PORTION = 500  # workloads in one dtype
MOST_PORTIONS = 1000  # of one --seed
MOST_TASKS = 1000  # of one chain
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
        """Returns what identifies the task within its question."""
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


@dataclass(frozen=True, slots=True)
class Chain:
    """The tasks of one portion in one dtype, until `share` workloads are judged."""

    portion: int
    dtype: str
    share: int


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

    @cached_property
    def chains(self) -> Sequence[Chain]:
        """Raises `UsageError` if one seed has not as many."""
        num_portions = -(-self.wanted // PORTION)
        if num_portions > MOST_PORTIONS:
            most = PORTION * MOST_PORTIONS
            raise UsageError(f"--workloads {self.wanted} is beyond {most}, which one --seed has")
        return [
            Chain(portion, dtype, min(PORTION, self.wanted - portion * PORTION))
            for portion in range(num_portions)
            for dtype in self.dtypes
        ]

    def tasks(self, found: Mapping[str, HonestOutcome]) -> Iterator[HonestTask | None]:
        """Yields the tasks without an outcome, all chains side by side; None while each of them waits
        for its last one.
        """
        given: set[str] = set()
        while ends := [end for chain in self.chains if (end := self._end(chain, found))]:
            ends.sort(key=lambda end: end[0])
            ready = [task for _, task in ends if task.key not in given]
            given.update(task.key for task in ready)
            yield from ready
            if not ready:
                yield None

    def is_complete(self, found: Mapping[str, HonestOutcome]) -> bool:
        """Returns whether nothing is left to judge."""
        return not any(self._end(chain, found) for chain in self.chains)

    def _end(self, chain: Chain, found: Mapping[str, HonestOutcome]) -> tuple[int, HonestTask] | None:
        """Returns the first task of a chain that has no outcome, with its place, if it is needed."""
        judged = place = 0
        while judged < chain.share and place < MOST_TASKS:
            task = self.task(chain, place)
            if task.key not in found:
                return place, task
            judged += found[task.key].counts.workloads
            place += 1
        return None

    def task(self, chain: Chain, place: int) -> HonestTask:
        """Returns a task. Portions begin apart in the order of meetings, as far as one of ordinary
        size reaches, so that together they go round all of them."""
        stride = -(-PORTION // self.num_examples)
        engine, model, test, is_large = self._meeting(chain.dtype, chain.portion * stride + place)
        examples = LARGE_EXAMPLES if is_large else self.num_examples
        seed = (self.seed * MOST_PORTIONS + chain.portion) * MOST_TASKS + place + 1
        return HonestTask(engine, model, chain.dtype, test, seed, examples)

    def _meeting(self, dtype: str, place: int) -> Meeting:
        order, rounds = self._order[dtype]
        while len(order) <= place:
            order.extend(next(rounds))
        return order[place]

    @cached_property
    def _order(self) -> Mapping[str, tuple[list[Meeting], Iterator[list[Meeting]]]]:
        return {dtype: ([], self._rounds(dtype)) for dtype in self.dtypes}

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
