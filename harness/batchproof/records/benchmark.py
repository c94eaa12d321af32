"""The parts of a benchmark result that readers rely on; a file holds more.

Metrics and schedules are figures by name, which tables print as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance

VALID, INVALID, UNVERIFIED = "VALID", "INVALID", "UNVERIFIED"
RowVerdict = Literal["VALID", "INVALID", "UNVERIFIED"]
Clock = Literal["process", "wall"]
Figures = Mapping[str, object]


@dataclass(frozen=True)
class DeviceFacts:
    """The device on which an engine was measured."""

    type: str
    name: str


@dataclass(frozen=True)
class BenchmarkHeader:
    """The first part of the file: provenance, device, and the clock of ratios."""

    made: Provenance
    device: DeviceFacts
    clock: Clock


@dataclass(frozen=True)
class WorkloadFacts:
    """The workload of a comparison and its totals."""

    name: str
    hash: str
    spec: Figures
    totals: Figures


@dataclass(frozen=True)
class ModelFacts:
    """The model of a comparison."""

    name: str
    dtype: str


@dataclass(frozen=True)
class RoundTimes:
    """The duration of one timed round in seconds, by each clock."""

    wall_s: float
    process_s: float


@dataclass(frozen=True)
class BenchmarkRow:
    """One engine in a comparison. Without `metrics` it answered wrongly, or not at all."""

    engine: str
    verdict: RowVerdict
    rounds: tuple[RoundTimes, ...]
    metrics: Figures | None


@dataclass(frozen=True)
class ComparisonRecord:
    """One workload on one model, all engines interleaved."""

    workload: WorkloadFacts
    model: ModelFacts
    clock: Clock
    rows: tuple[BenchmarkRow, ...]


@dataclass(frozen=True)
class BenchmarkFooter:
    """The last part of the file. Only a run that was completed has one."""

    finished: str
    num_comparisons: int


@dataclass(frozen=True)
class BenchmarkRecord:
    """A whole benchmark result."""

    header: BenchmarkHeader
    comparisons: tuple[ComparisonRecord, ...]
    footer: BenchmarkFooter | None = None


BENCHMARK = FileKind("benchmark result", "batchproof.benchmark", 3, BenchmarkRecord, is_open=True)


def exceeds_slots(row: Mapping[str, Any], slots: int) -> bool:
    """Whether more requests were served at once than the workload has slots. False for a row of an
    engine that was not stepped, which does not show it."""
    return (row.get("num_at_once") or 0) > slots
