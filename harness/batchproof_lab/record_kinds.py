"""The files of the laboratory: planted faults, honest engines and model types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from operator import add
from typing import Annotated

from pydantic import Field

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance


@dataclass(frozen=True)
class KillRecord:
    """One session against one fault. `caught_by`: a test function; None: the fault survived."""

    broken: str | None  # the promise that the failure names
    cause: str | None  # what its diagnosis names
    seed: int = 0
    caught_by: str | None = None
    examples: int = 0  # workloads given to the engine until the first failure
    seconds: float = 0.0


@dataclass(frozen=True)
class FaultRow:
    """One planted fault. `home`: the quickest model that shows it, else all models together."""

    kind: Annotated[str, Field(alias="class")]
    promise: str
    cause: str
    home: tuple[str, ...]
    kills: tuple[KillRecord, ...]  # at home, by seed
    lie: str = ""  # what the fault does, in a sentence
    thread: str = ""  # owner/repository#number of the bug it is modelled on
    models: tuple[str, ...] = ()  # that show it
    own_failures: tuple[str, ...] = ()  # where the harness broke instead of reporting the fault
    code: str = ""  # digest of the fault and of the tests that caught it at home


@dataclass(frozen=True)
class FunctionRow:
    """One conformance test function, and the faults it was the first to catch."""

    is_generated: bool
    faults: tuple[str, ...]


@dataclass(frozen=True)
class DiagnosisScore:
    """One vote for each fault and seed at home. `confusion`: expected cause -> named cause -> votes."""

    right: int = 0
    votes: int = 0
    confusion: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class KillUpdate:
    """Rows that were made later than the rest."""

    faults: tuple[str, ...]
    made: Provenance


@dataclass(frozen=True)
class KillTableRecord:
    """`is_full`: all faults on all embedded models."""

    made: Provenance
    is_complete: bool
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    faults: Mapping[str, FaultRow]
    diagnosis: DiagnosisScore
    tests: Mapping[str, FunctionRow] = field(default_factory=dict)
    is_full: bool = False
    updates: tuple[KillUpdate, ...] = ()

    @property
    def num_caught(self) -> int:
        return sum(bool(row.home) for row in self.faults.values())


KILL_TABLE = FileKind("kill table", "batchproof.kill-table", 1, KillTableRecord)


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


@dataclass(frozen=True)
class ToyRecord:
    """One small model. `worst` is the largest difference of a logit from float64, in units of E, and
    `worst_bfloat16` the same in bfloat16, None where its rounding is too large to judge."""

    model_type: Annotated[str, Field(alias="type")]
    form: str  # empty: as by default
    verdict: str
    reason: str = ""
    layers: str = ""
    worst: float | None = None
    worst_bfloat16: float | None = None
    error_unit: float | None = None  # E, the reference's own worst logit error
    num_tokens: int | None = 0

    @property
    def name(self) -> str:
        """Returns the type, with its form if it is not the default."""
        return f"{self.model_type}, {self.form}" if self.form else self.model_type


@dataclass(frozen=True)
class SweepCounts:
    """The number of models by verdict, for types in their default form and in other forms."""

    types: Mapping[str, int]
    forms: Mapping[str, int]


@dataclass(frozen=True)
class ModelSweepRecord:
    """A sweep over types of models with one engine."""

    made: Provenance
    is_complete: bool
    engine: str
    seed: int
    num_types: int
    counts: SweepCounts
    toys: tuple[ToyRecord, ...]


MODEL_SWEEP = FileKind("model sweep", "batchproof.models", 2, ModelSweepRecord)
