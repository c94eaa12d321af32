"""Honest engines on generated workloads, and the false alarms among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance


@dataclass(frozen=True)
class HonestCounts:
    """What was judged: tasks, workloads, answers and tokens."""

    tasks: int = 0  # one engine, model, dtype and test each
    workloads: int = 0
    answers: int = 0
    tokens: int = 0
    near_ties: int = 0

    def __add__(self, other: HonestCounts) -> HonestCounts:
        return HonestCounts(
            self.tasks + other.tasks,
            self.workloads + other.workloads,
            self.answers + other.answers,
            self.tokens + other.tokens,
            self.near_ties + other.near_ties,
        )


CountsByDtype = Mapping[str, HonestCounts]


@dataclass(frozen=True)
class FalseAlarm:
    """A failure of an engine that is honest. `report` is the whole report, for people."""

    engine: str
    model: str
    dtype: str
    test: str
    seed: int
    report: str


@dataclass(frozen=True)
class HonestRecord:
    """A campaign against false alarms. `wanted` is the number of workloads for each dtype."""

    made: Provenance
    is_complete: bool
    seed: int
    wanted: int
    examples_per_task: int
    totals: CountsByDtype
    engines: Mapping[str, CountsByDtype]
    models: Mapping[str, CountsByDtype]
    tests: Mapping[str, CountsByDtype]
    alarms: tuple[FalseAlarm, ...]


HONEST = FileKind("table of honest engines", "batchproof.honest", 1, HonestRecord)
