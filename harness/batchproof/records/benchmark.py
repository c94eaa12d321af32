"""What readers of a benchmark result rely on; a file holds more than that.

Metrics, schedules, distributions and fits are figures by name, which tables and pictures print as they
stand: `batchproof.bench.reading.load` gives the whole document, checked against these records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance

VALID, INVALID, UNVERIFIED = "VALID", "INVALID", "UNVERIFIED"
RowVerdict = Literal["VALID", "INVALID", "UNVERIFIED"]
Clock = Literal["process", "wall"]
Figures = Mapping[str, object]


@dataclass(frozen=True)
class DeviceFacts:
    type: str
    name: str


@dataclass(frozen=True)
class BenchmarkHeader:
    made: Provenance
    device: DeviceFacts
    clock: Clock


@dataclass(frozen=True)
class WorkloadFacts:
    name: str
    hash: str
    spec: Figures
    totals: Figures


@dataclass(frozen=True)
class ModelFacts:
    name: str
    dtype: str


@dataclass(frozen=True)
class RoundTimes:
    wall_s: float
    process_s: float


@dataclass(frozen=True)
class BenchmarkRow:
    """One engine in a comparison; no `metrics`: it answered wrongly, or not at all."""

    engine: str
    verdict: RowVerdict
    interface: str
    rounds: tuple[RoundTimes, ...]
    metrics: Figures | None


@dataclass(frozen=True)
class RatioRecord:
    """Throughput of `engine` over that of `over`, with its interval where there were laps enough."""

    engine: str
    over: str
    clock: Clock
    ratio: float
    low: float | None
    high: float | None
    num_laps: int


@dataclass(frozen=True)
class ComparisonRecord:
    """One workload on one model, all engines interleaved."""

    workload: WorkloadFacts
    model: ModelFacts
    rows: tuple[BenchmarkRow, ...]
    ratios: tuple[RatioRecord, ...]


@dataclass(frozen=True)
class GrowthPoint:
    x: float
    seconds: float


@dataclass(frozen=True)
class GrowthRecord:
    """How the cost of an engine grows along one axis."""

    engine: str
    axis: str
    points: tuple[GrowthPoint, ...]


@dataclass(frozen=True)
class BenchmarkFooter:
    """Only a run that came to its end has written one."""

    finished: str
    num_comparisons: int
    num_growth: int


@dataclass(frozen=True)
class BenchmarkRecord:
    header: BenchmarkHeader
    comparisons: tuple[ComparisonRecord, ...]
    growth: tuple[GrowthRecord, ...]
    footer: BenchmarkFooter | None = None

    @property
    def is_complete(self) -> bool:
        return self.footer is not None


BENCHMARK = FileKind("benchmark result", "batchproof.benchmark", 1, BenchmarkRecord)
