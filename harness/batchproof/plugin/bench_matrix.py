"""What each benchmark test is about: an engine, a model, and a workload or cost growth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from batchproof.bench.benchmark_run import BenchmarkRun
from batchproof.bench.spec import BenchSpec
from batchproof.plugin.bench_options import GROWTH, THROUGHPUT
from batchproof.plugin.bench_selection import BenchSelection
from batchproof.plugin.selection import Selection
from batchproof.run.registry import EngineSpec

MAX_REFERENCE_TOKENS = 8192  # output tokens of a round; the default reference skips longer ones


@dataclass(frozen=True, slots=True)
class BenchCell:
    """The parameter of one benchmark test. Without a workload it measures cost growth."""

    workload: BenchSpec | None
    model_name: str
    engine: EngineSpec

    @property
    def fixture(self) -> str:
        """The fixture whose parameter it is."""
        return THROUGHPUT if self.workload else GROWTH

    @property
    def label(self) -> str:
        """The workload as test ids name it."""
        return self.workload.label if self.workload else GROWTH

    @property
    def group(self) -> tuple[str, str]:
        """The key of the engines that run interleaved."""
        return self.label, self.model_name

    def measure(
        self, run: BenchmarkRun, engines: Sequence[EngineSpec], on_step: Callable[[str], None]
    ) -> Mapping[str, Any]:
        """Measures the engines of the group. Returns the comparison, for growth a mapping with `rows`
        alone; a row is of one engine."""
        if self.workload is None:
            return {"rows": run.grow(self.model_name, engines, on_step)}
        return run.compare(self.workload, self.model_name, engines, on_step)


def bench_cells(fixture: str, options: BenchSelection, selection: Selection) -> Iterator[BenchCell]:
    """Yields the parameters of a fixture. Growth is measured on the first model only."""
    if fixture == GROWTH:
        for engine in selection.engines if options.growth_s else ():
            yield BenchCell(None, options.model_names[0], engine)
        return
    for spec, model_name, engine in product(options.specs, options.model_names, selection.engines):
        is_long = spec.mean_output_tokens > MAX_REFERENCE_TOKENS
        if not (is_long and engine.name in selection.yardsticks):
            yield BenchCell(spec, model_name, engine)
