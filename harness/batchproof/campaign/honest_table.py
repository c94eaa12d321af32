"""Decides which engine meets which test next, and counts everything."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, product

from batchproof.campaign.conformance_modules import Facts, conformance_functions
from batchproof.campaign.honest_tasks import HonestOutcome, HonestTask
from batchproof.models.embedded import EMBEDDED, NAN_MODEL
from batchproof.records.honest import (
    CountsByDtype,
    FalseAlarm,
    HonestCounts,
    HonestRecord,
    HonestRun,
)
from batchproof.records.provenance import Provenance
from batchproof.run.registry import BY_DEFAULT, ODD_PREFIX, oddities

MOST_SEEDS = 1_000_000  # tasks that one --seed has seeds for
LARGE_EXAMPLES = 100  # with as many, the tests of scale take the sizes of the profile thorough
LARGE_SHARE = 1 / 4  # of the tasks of these tests

MODELS = tuple(name for name in EMBEDDED if name != NAN_MODEL)

Counts = dict[tuple[str, str], HonestCounts]  # (engine, model or test; dtype) -> what was counted


@dataclass
class HonestTable:
    """The state of the campaign: what is wanted, and what was counted so far."""

    engines: Sequence[str]
    dtypes: Sequence[str]
    wanted: int  # workloads a dtype
    seed: int
    num_examples: int
    totals: Counter[str] = field(default_factory=Counter)  # workloads by dtype
    by_engine: Counts = field(default_factory=dict)
    by_model: Counts = field(default_factory=dict)
    by_test: Counts = field(default_factory=dict)
    alarms: list[FalseAlarm] = field(default_factory=list)

    def tasks(self) -> Iterator[HonestTask]:
        """Yields tasks, round after round over all engines, models and dtypes, in an order that the
        seed determines.

        Each time it comes up, an engine meets the next test of its own shuffled list. Ends when
        enough was judged in every dtype; how many of the last tasks that takes depends on timing.
        """
        rng = random.Random(self.seed)
        facts_of = conformance_functions()
        properties = [name for name, facts in facts_of.items() if _sweeps(facts)]
        decks = {
            each: cycle(rng.sample(properties, len(properties)))
            for each in product(self.engines, self.dtypes)
        }
        seed = self.seed * MOST_SEEDS
        while True:
            meetings = list(product(self.engines, MODELS, self.dtypes))
            rng.shuffle(meetings)
            for engine, model, dtype in meetings:
                function, seed = next(decks[engine, dtype]), seed + 1
                marks = facts_of[function].marks
                is_large = "long_model" in marks and rng.random() < LARGE_SHARE
                examples = LARGE_EXAMPLES if is_large else self.num_examples
                on = NAN_MODEL if "nan_model" in marks else model
                if self.totals[dtype] < self.wanted:
                    yield HonestTask(engine, on, dtype, function, seed, examples)
                elif all(self.totals[each] >= self.wanted for each in self.dtypes):
                    return

    def add(self, task: HonestTask, found: HonestOutcome) -> None:
        """Counts what one task found."""
        self.totals[task.dtype] += found.counts.workloads
        parts = (
            (self.by_engine, task.engine),
            (self.by_model, task.model),
            (self.by_test, task.function),
        )
        for counts, name in parts:
            before = counts.get((name, task.dtype), HonestCounts())
            counts[name, task.dtype] = before + found.counts
        self.alarms += [
            FalseAlarm(task.engine, task.model, task.dtype, task.function, task.seed, report)
            for report in found.alarms
        ]

    def as_record(self, made: Provenance, is_complete: bool) -> HonestRecord:
        """Returns what is known so far."""
        judged = self.totals.total()
        run = HonestRun(made, is_complete, self.seed, self.wanted, self.num_examples, judged)
        return HonestRecord(
            made=made,
            runs=(run,),
            totals={dtype: self._total(dtype) for dtype in self.dtypes},
            engines=_nested(self.by_engine, self.engines),
            models=_nested(self.by_model, EMBEDDED),
            tests=_nested(self.by_test, conformance_functions()),
            alarms=tuple(self.alarms),
        )

    def _total(self, dtype: str) -> HonestCounts:
        found = (counts for (_, each), counts in self.by_engine.items() if each == dtype)
        return sum(found, start=HonestCounts())


def honest_engines() -> list[str]:
    """Returns the names of all engines that keep every promise: the built-in ones and the oddities."""
    return [*BY_DEFAULT, *(f"{ODD_PREFIX}{name}" for name in oddities())]


def _sweeps(facts: Facts) -> bool:
    """Returns whether the test draws or sweeps its workloads, as those of scale and of NaN do."""
    return facts.is_generated or not facts.marks.isdisjoint({"long_model", "nan_model"})


def _nested(counts: Counts, names: Iterable[str]) -> Mapping[str, CountsByDtype]:
    return {
        name: {dtype: each for (of, dtype), each in sorted(counts.items(), key=_name) if of == name}
        for name in names
        if any(of == name for of, _ in counts)
    }


def _name(entry: tuple[tuple[str, str], HonestCounts]) -> tuple[str, str]:
    return entry[0]
