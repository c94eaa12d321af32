"""What a benchmark test is about: an engine, what it is measured on, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from batchproof.bench import growth
from batchproof.bench.axes import Axis, default_axes
from batchproof.bench.benchmark_run import BenchmarkRun
from batchproof.bench.load import Load
from batchproof.bench.spec import BenchSpec
from batchproof.plugin.bench_options import FIXTURES
from batchproof.plugin.bench_selection import BenchSelection
from batchproof.plugin.selection import Selection
from batchproof.run.registry import EngineSpec

THROUGHPUT, GROWTH, LOAD = "measured", "growth", "load_sweep"  # fixtures
MAX_REFERENCE_TOKENS = 8192  # output tokens of a round; the default reference skips longer ones


@dataclass(frozen=True, slots=True)
class Contest:
    """The parameter of one benchmark test.

    `about` is a workload or an axis of cost growth. With a load, the workload is measured at each of
    its points.
    """

    about: BenchSpec | Axis
    model_name: str
    engine: EngineSpec
    load: Load | None = None

    @property
    def fixture(self) -> str:
        """Returns the fixture whose parameter it is."""
        if isinstance(self.about, Axis):
            return GROWTH
        return THROUGHPUT if self.load is None else LOAD

    @property
    def label(self) -> str:
        """Returns the workload or axis as test ids name it."""
        return self.about.name if isinstance(self.about, Axis) else self.about.label

    @property
    def group(self) -> tuple[str, str, str]:
        """Returns the key of the engines that run interleaved."""
        return self.fixture, self.label, self.model_name

    def num_pieces(self, run: BenchmarkRun, engines: Sequence[EngineSpec]) -> int:
        """Returns how often `measure` calls `on_piece`."""
        if isinstance(self.about, Axis):
            return growth.num_pieces(engines, [self.about])
        return run.num_pieces(len(engines), self.load)

    def measure(
        self, run: BenchmarkRun, engines: Sequence[EngineSpec], on_piece: Callable[[str], None]
    ) -> Mapping[str, Any]:
        """Measures the engines of the group. Returns the comparison, or for growth and load a mapping
        with `rows` alone; a row is of one engine."""
        if isinstance(self.about, Axis):
            return {"rows": run.grow(self.about, self.model_name, engines, on_piece)}
        if self.load is None:
            return run.compare(self.about, self.model_name, engines, on_piece)
        return {"rows": run.sweep(self.about, self.load, self.model_name, engines, on_piece)}


def _throughput(options: BenchSelection, selection: Selection) -> Iterator[Contest]:
    """Yields the comparisons."""
    specs = options.specs if options.load is None else ()
    for spec, model_name, engine in product(specs, options.model_names, selection.engines):
        is_long = spec.mean_output_tokens > MAX_REFERENCE_TOKENS
        if not (is_long and engine.name in selection.yardsticks):
            yield Contest(spec, model_name, engine)


def _growth(options: BenchSelection, selection: Selection) -> Iterator[Contest]:
    """Yields the growth measurements, which use the first model only."""
    for axis, engine in product(default_axes() if options.growth_s else (), selection.engines):
        yield Contest(axis, options.model_names[0], engine)


def _load(options: BenchSelection, selection: Selection) -> Iterator[Contest]:
    """Yields the load sweeps. A yardstick takes no part: it would fall behind at most loads, and take
    most of the time."""
    specs = options.specs if options.load is not None else ()
    for spec, model_name, engine in product(specs, options.model_names, selection.engines):
        if engine.name not in selection.yardsticks:
            yield Contest(spec, model_name, engine, options.load)


# By the fixture that a test asks for.
CONTESTS: dict[str, Callable[[BenchSelection, Selection], Iterator[Contest]]] = {
    THROUGHPUT: _throughput,
    GROWTH: _growth,
    LOAD: _load,
}
assert CONTESTS.keys() == FIXTURES, "or a run that is no benchmark would not leave one out"
