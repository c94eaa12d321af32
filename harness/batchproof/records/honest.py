"""Honest engines on generated workloads, and the false alarms among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from operator import add

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
        return HonestCounts(*map(add, astuple(self), astuple(other)))


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
class RightAlarm:
    """An alarm about an engine that had a bug of its own; a person says `why`."""

    alarm: FalseAlarm
    why: str


@dataclass(frozen=True)
class HonestRun:
    """One run of the command, which judges workloads of its own seed."""

    made: Provenance
    is_complete: bool  # all workloads that were wanted have been judged
    seed: int
    wanted: int  # workloads in each dtype
    examples_per_task: int
    workloads: int  # judged, in all dtypes


@dataclass(frozen=True)
class HonestRecord:
    """Campaigns against false alarms, added up over runs of different seeds."""

    made: Provenance
    runs: tuple[HonestRun, ...]
    totals: CountsByDtype
    engines: Mapping[str, CountsByDtype]
    models: Mapping[str, CountsByDtype]
    tests: Mapping[str, CountsByDtype]
    alarms: tuple[FalseAlarm, ...]
    right: tuple[RightAlarm, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Returns whether no run was stopped early."""
        return all(run.is_complete for run in self.runs)


HONEST = FileKind("table of honest engines", "batchproof.honest", 2, HonestRecord)
