"""A benchmark run: comparisons, cost growth and load, written to one file as they are measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from batchproof.bench import growth
from batchproof.bench.axes import Axis
from batchproof.bench.hardware import device_facts
from batchproof.bench.interleaved import compare_engines, workload_facts
from batchproof.bench.load import Load
from batchproof.bench.load_sweep import empty_entry, sweep_load
from batchproof.bench.processes import adopt_orphans
from batchproof.bench.reading import VALID
from batchproof.bench.result_rows import Terms
from batchproof.bench.results import ResultFile
from batchproof.bench.roofline import measure_ceilings
from batchproof.bench.spec import BenchSpec
from batchproof.errors import UsageError
from batchproof.places import ROOT
from batchproof.records.provenance import provenance, pytest_line
from batchproof.requirements.promises import Promise
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec
from batchproof.run.trial import Trial

FOLDER = ROOT / "results" / "benchmarks"


class BenchmarkRun:
    """Measures the ceilings when it is made; `finish` writes the footer of the file."""

    def __init__(self, lab: Laboratory, terms: Terms, growth_s: float, path: Path) -> None:
        """`growth_s`: wall-clock seconds for each axis of cost growth."""
        adopt_orphans()
        self.path = path
        self._lab = lab
        self._growth_s = growth_s
        self._file = ResultFile(path)
        ceilings = measure_ceilings(lab.device, lab.dtype)
        self._terms = replace(terms, ceilings=ceilings)
        dtype = str(lab.dtype).removeprefix("torch.")
        self._file.write(
            {
                "made": provenance(pytest_line(sys.argv[1:])),
                "device": device_facts(lab.device),
                "clock": terms.clock,
                "num_laps": terms.num_laps,
                "slo_ms": dict(terms.slo_ms or {}),
                "ceilings": {dtype: asdict(ceilings)},
            }
        )

    def num_pieces(self, num_engines: int, load: Load | None = None) -> int:
        """Returns how often `compare` calls `on_round`, or `sweep` if a load is given."""
        num_laps = self._terms.num_laps
        if load is None:
            return 2 * num_engines * (num_laps + 1)
        at_once = 0 if load.values else self.num_pieces(num_engines)
        return 2 * num_engines * (num_laps * load.num_points + 1) + at_once

    def compare(
        self,
        spec: BenchSpec,
        model_name: str,
        engines: Sequence[EngineSpec],
        on_round: Callable[[str], None],
    ) -> dict[str, Any]:
        """Times all engines interleaved on one workload and model; writes and returns the comparison.
        Raises `UsageError` if a request does not fit the model's context."""
        began = perf_counter()
        subject = self._lab.subject(model_name)
        load_s = perf_counter() - began
        workload = spec.realise(subject.vocab_size, subject.context_len)
        # With arrivals over time an engine also waits, which process time does not show.
        terms = self._terms if workload.arrivals.is_at_once else replace(self._terms, clock="wall")
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

    def grow(
        self, axis: Axis, model_name: str, engines: Sequence[EngineSpec], on_step: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        """Measures how the cost of each engine grows along one axis; writes and returns the entries."""
        trials = [self._trial(engine, model_name) for engine in engines]
        subject = self._lab.subject(model_name)
        measured = [growth.GrowthEngine.of(trial) for trial in trials]
        budget = growth.GrowthBudget(axis_s=self._growth_s, call_limit_s=self._terms.time_limit_s)
        found = growth.measure_growth(subject, measured, [axis], budget, on_step)
        entries = [{"model": subject.name, "dtype": subject.dtype_name} | entry for entry in found]
        for entry in entries:
            self._file.add_growth(entry)
        return entries

    def sweep(
        self,
        spec: BenchSpec,
        load: Load,
        model_name: str,
        engines: Sequence[EngineSpec],
        on_round: Callable[[str], None],
    ) -> list[dict[str, Any]]:
        """Measures engines that can be stepped at rising load; writes and returns an entry for each.

        A load without values is made of the request throughput of the fastest lap of a VALID engine
        with all requests at once, from a comparison that is written as well: a slow minute of the
        machine must not leave the highest load below what an engine can do. Raises as `compare` does.
        """
        rows = [] if load.values else self.compare(spec, model_name, engines, on_round)["rows"]
        laps_s = [each["wall_s"] for r in rows if r["verdict"] == VALID for each in r["rounds"]]
        subject = self._lab.subject(model_name)
        sizes = subject.vocab_size, subject.context_len
        if rows and not laps_s:
            entries = [empty_entry(r["engine"], r["verdict"], r["reason"], load) for r in rows]
        else:
            load = load.at(spec.num_requests / min(laps_s, default=1.0))
            workloads = [each.realise(*sizes) for each in load.specs(spec)]
            trials = [self._trial(engine, model_name) for engine in engines]
            terms = replace(self._terms, clock="wall")  # an engine also waits for requests
            entries = sweep_load(trials, load, workloads, terms, on_round)
        facts = workload_facts(spec.realise(*sizes))
        model = {"name": subject.name, "dtype": subject.dtype_name}
        entries = [{"workload": facts, "model": model} | entry for entry in entries]
        for entry in entries:
            self._file.add_load(entry)
        return entries

    def finish(self) -> None:
        """Marks the file as complete."""
        self._file.finish()


def result_path(asked: str | None, device_type: str) -> Path:
    """Returns where the result file goes. Raises `UsageError` if nothing can be written there."""
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
