"""What a benchmark test is about: an engine, and what it is measured on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from batchproof.bench.axes import default_axes
from batchproof.bench.load import Load
from batchproof.bench.spec import BenchSpec
from batchproof.plugin.bench_options import FIXTURES
from batchproof.plugin.bench_selection import BenchSelection
from batchproof.plugin.selection import Selection
from batchproof.run.registry import EngineSpec

MAX_REFERENCE_TOKENS = 8192  # output tokens of a round; the default reference skips longer ones


@dataclass(frozen=True, slots=True)
class Contest:
    """The parameter of one benchmark test.

    `about` is a workload, or the name of an axis of cost growth. With a load, the workload is measured
    at each of its points.
    """

    about: BenchSpec | str
    model_name: str
    engine: EngineSpec
    load: Load | None = None

    @property
    def label(self) -> str:
        """Returns the workload or axis as test ids name it."""
        return self.about if isinstance(self.about, str) else self.about.label

    @property
    def group(self) -> tuple[str, str, bool]:
        """Returns the key of the engines that run interleaved."""
        return self.label, self.model_name, self.load is not None


def _throughput(options: BenchSelection, selection: Selection) -> Iterator[Contest]:
    """Yields the comparisons."""
    for spec in options.specs if options.load is None else ():
        for model_name in options.model_names:
            for engine in selection.engines:
                is_long = spec.mean_output_tokens > MAX_REFERENCE_TOKENS
                if not (is_long and engine.name in selection.yardsticks):
                    yield Contest(spec, model_name, engine)


def _growth(options: BenchSelection, selection: Selection) -> Iterator[Contest]:
    """Yields the growth measurements, which use the first model only."""
    for axis in default_axes() if options.growth_s else ():
        for engine in selection.engines:
            yield Contest(axis.name, options.model_names[0], engine)


def _load(options: BenchSelection, selection: Selection) -> Iterator[Contest]:
    """Yields the load sweeps. A yardstick takes no part: it would fall behind at most loads, and take
    most of the time."""
    for spec in options.specs if options.load is not None else ():
        for model_name in options.model_names:
            for engine in selection.engines:
                if engine.name not in selection.yardsticks:
                    yield Contest(spec, model_name, engine, options.load)


# By the fixture that a test asks for.
CONTESTS: dict[str, Callable[[BenchSelection, Selection], Iterator[Contest]]] = {
    "measured": _throughput,
    "growth": _growth,
    "load_sweep": _load,
}
assert CONTESTS.keys() == FIXTURES, "or a run that is no benchmark would not leave one out"
