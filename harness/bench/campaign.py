"""A benchmark run: comparisons and cost growth, written to one result file as they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from harness.bench import growth
from harness.bench.axes import Axis
from harness.bench.comparison import compare_engines
from harness.bench.environment import device_facts
from harness.bench.results import ResultFile
from harness.bench.roofline import Ceilings, measure_ceilings
from harness.bench.rows import Terms
from harness.bench.spec import BenchSpec
from harness.errors import UsageError
from harness.promises import Promise
from harness.provenance import ROOT, command_line, provenance
from harness.registry import EngineSpec
from harness.trial import Laboratory, Trial

FOLDER = ROOT / "results" / "benchmarks"


@dataclass(frozen=True, slots=True)
class Settings:
    """How everything in a run is measured; `sample_size` and `slo_ms` as in `Terms`."""

    num_laps: int
    clock: str
    sample_size: int | None
    slo_ms: Mapping[str, float]
    time_limit_s: float
    growth_s: float  # for each axis


class Campaign:
    """The ceilings are measured when it begins; `finish` gives the file its footer."""

    def __init__(self, lab: Laboratory, settings: Settings, path: Path) -> None:
        self.path = path
        self._lab = lab
        self._settings = settings
        self._file = ResultFile(path)
        self._ceilings: Ceilings = measure_ceilings(lab.device, lab.dtype)
        dtype = str(lab.dtype).removeprefix("torch.")
        self._file.write(
            {
                "made": provenance(command_line("pytest")),
                "device": device_facts(lab.device),
                "clock": settings.clock,
                "num_laps": settings.num_laps,
                "slo_ms": dict(settings.slo_ms),
                "ceilings": {dtype: asdict(self._ceilings)},
            }
        )

    def num_pieces(self, num_engines: int) -> int:
        """How often `compare` calls `on_round`."""
        return 2 * num_engines * (self._settings.num_laps + 1)

    def compare(
        self,
        spec: BenchSpec,
        model_name: str,
        engines: Sequence[EngineSpec],
        on_round: Callable[[str], None],
    ) -> dict[str, Any]:
        """One workload on one model, all engines interleaved."""
        began = perf_counter()
        subject = self._lab.subject(model_name)
        load_s = perf_counter() - began
        workload = spec.realise(subject.vocab_size, subject.context_len)
        # Where requests arrive over time an engine is also asked to wait: no thread's own time tells.
        clock = self._settings.clock if workload.arrivals_s is None else "wall"
        terms = Terms(
            num_laps=self._settings.num_laps,
            clock=clock,
            ceilings=self._ceilings,
            sample_size=self._settings.sample_size,
            slo_ms=self._settings.slo_ms,
            time_limit_s=self._settings.time_limit_s,
        )
        trials = [self._trial(engine, model_name) for engine in engines]
        model = {
            "name": subject.name,
            "dtype": subject.dtype_name,
            "num_parameters": subject.model.num_parameters(),
            "load_s": load_s,
        }
        found = compare_engines(trials, workload, terms, on_round)
        comparison = {"workload": found.pop("workload"), "model": model} | found
        self._file.add_comparison(comparison)
        return comparison

    def _trial(self, engine: EngineSpec, model_name: str) -> Trial:
        oracle = self._lab.oracle(model_name)
        capabilities = self._lab.capabilities(engine, oracle.subject)
        return Trial(self._lab, engine, oracle, capabilities, Promise.P1)

    @staticmethod
    def num_growth_pieces(axis: Axis, num_engines: int) -> int:
        """How often `grow` calls `on_step`."""
        return num_engines * len(axis.points) * growth.Effort().num_laps

    def grow(
        self,
        axis: Axis,
        model_name: str,
        engines: Sequence[EngineSpec],
        on_step: Callable[[str], None],
    ) -> list[dict[str, Any]]:
        """How the cost of each engine grows along one axis."""
        trials = [self._trial(engine, model_name) for engine in engines]
        subject = self._lab.subject(model_name)
        entrants = [growth.Entrant.of(trial) for trial in trials]
        effort = growth.Effort(axis_s=self._settings.growth_s, call_limit_s=self._settings.time_limit_s)
        found = growth.measure_growth(subject, entrants, [axis], effort, on_step)
        entries = [{"model": subject.name, "dtype": subject.dtype_name} | entry for entry in found]
        for entry in entries:
            self._file.add_growth(entry)
        return entries

    def finish(self) -> None:
        """Everything that was asked for has been measured."""
        self._file.finish()


def result_path(asked: str | None, device_type: str) -> Path:
    """Where the file goes. Raises `UsageError` if nothing can be written there."""
    if asked is None:
        stamp = datetime.now(UTC).strftime("%Y-%m-%d-%H%M%S")
        FOLDER.mkdir(parents=True, exist_ok=True)
        return FOLDER / f"{stamp}-{device_type}.json"
    path = Path(asked)
    if path.is_dir() or path.suffix != ".json":
        raise UsageError(f"--results {asked!r} must name a file that ends in .json")
    if not path.parent.is_dir():
        raise UsageError(f"--results {asked!r}: there is no folder {str(path.parent)!r}")
    return path
