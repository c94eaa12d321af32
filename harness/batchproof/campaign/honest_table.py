"""Which engine meets which test next, and everything counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, product
from typing import Any

from batchproof.campaign.modules import conformance_functions
from batchproof.campaign.watches import COUNTED, Seen, Watch
from batchproof.models.catalogue import EMBEDDED

SCHEMA_VERSION = 1
MOST_SEEDS = 1_000_000  # tasks that one --seed has seeds for

Counts = dict[tuple[str, str], Counter[str]]  # (engine, model or test; dtype) -> what was counted


@dataclass
class HonestTable:
    engines: Sequence[str]
    dtypes: Sequence[str]
    wanted: int  # workloads a dtype
    seed: int
    num_examples: int
    totals: Counter[str] = field(default_factory=Counter)  # workloads by dtype
    by_engine: Counts = field(default_factory=dict)
    by_model: Counts = field(default_factory=dict)
    by_test: Counts = field(default_factory=dict)
    alarms: list[dict[str, Any]] = field(default_factory=list)

    def tasks(self) -> Iterator[Watch]:
        """Round after round of all engines, models and dtypes, in an order that the seed determines.
        Each time it comes up, an engine meets the next test of its own shuffled deck. Ends when enough
        was judged in every dtype; how many of the last tasks that takes is a matter of time."""
        rng = random.Random(self.seed)
        properties = [name for name, facts in conformance_functions().items() if facts.is_generated]
        decks = {
            each: cycle(rng.sample(properties, len(properties)))
            for each in product(self.engines, self.dtypes)
        }
        seed = self.seed * MOST_SEEDS
        while True:
            meetings = list(product(self.engines, EMBEDDED, self.dtypes))
            rng.shuffle(meetings)
            for engine, model, dtype in meetings:
                function, seed = next(decks[engine, dtype]), seed + 1
                if self.totals[dtype] < self.wanted:
                    yield Watch(engine, model, dtype, function, seed, self.num_examples)
                elif all(self.totals[each] >= self.wanted for each in self.dtypes):
                    return

    def add(self, task: Watch, seen: Seen) -> None:
        self.totals[task.dtype] += seen.counts["workloads"]
        parts = (
            (self.by_engine, task.engine),
            (self.by_model, task.model),
            (self.by_test, task.function),
        )
        for counts, name in parts:
            counts.setdefault((name, task.dtype), Counter()).update(seen.counts | {"tasks": 1})
        self.alarms += [
            {
                "engine": task.engine,
                "model": task.model,
                "dtype": task.dtype,
                "test": task.function,
                "seed": task.seed,
                "report": report,
            }
            for report in seen.alarms
        ]

    def as_data(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "seed": self.seed,
            "wanted": self.wanted,
            "examples_per_task": self.num_examples,
            "totals": {dtype: self._total(dtype) for dtype in self.dtypes},
            "engines": _nested(self.by_engine, self.engines),
            "models": _nested(self.by_model, EMBEDDED),
            "tests": _nested(self.by_test, conformance_functions()),
            "alarms": self.alarms,
        }

    def _total(self, dtype: str) -> dict[str, int]:
        total: Counter[str] = Counter(dict.fromkeys(("tasks", *COUNTED), 0))
        for (_, each), counts in self.by_engine.items():
            if each == dtype:
                total.update(counts)
        return dict(total)


def _nested(counts: Counts, names: Any) -> dict[str, dict[str, dict[str, int]]]:
    return {
        name: {dtype: dict(each) for (of, dtype), each in sorted(counts.items()) if of == name}
        for name in names
        if any(of == name for of, _ in counts)
    }
