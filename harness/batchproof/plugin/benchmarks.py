"""`pytest --benchmark-only`: engines timed interleaved, reported one by one.

pytest-benchmark runs one test after the other and cannot interleave engines. The first test of a
comparison therefore runs all engines that were selected for it; each test then reports its own.
"""

import faulthandler
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from tqdm import tqdm  # type: ignore[import-untyped]

from batchproof.bench.benchmark_run import BenchmarkRun, result_path
from batchproof.bench.hardware import device_facts
from batchproof.bench.spec import BenchSpec
from batchproof.bench.tables import table
from batchproof.errors import UnsupportedModelError
from batchproof.plugin.bench_options import FIXTURES, GROWTH, THROUGHPUT
from batchproof.plugin.bench_selection import BenchSelection
from batchproof.plugin.deselection import keep
from batchproof.plugin.selection import LAB, SELECTION, Selection
from batchproof.records.benchmark import INVALID
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


class ReplayClock:
    """A clock that returns recorded times.

    As a benchmark's `timer` it lets pytest-benchmark store times of rounds that ran interleaved with
    other engines, which its own loop cannot do.
    """

    def __init__(self) -> None:
        self._readings: Iterator[float] = iter(())

    def load(self, durations_s: Sequence[float]) -> None:
        """Sets the durations of the following rounds, in seconds. Each round reads the clock twice."""
        self._readings = iter([reading for each in durations_s for reading in (0.0, each)])

    def __call__(self) -> float:
        """Returns the next reading in seconds. Raises `AssertionError` beyond the rounds loaded."""
        reading = next(self._readings, None)
        assert reading is not None, "as many rounds are replayed as were loaded"
        return reading


@dataclass(frozen=True)
class Measured:
    """What one engine showed. `lack` says why there are no times; it fails the test if `is_defect`."""

    times_s: Sequence[float]
    extra_info: Mapping[str, Any]
    lack: str
    is_defect: bool
    replay: ReplayClock

    def report_to(self, benchmark: BenchmarkFixture) -> None:
        """Passes the times to pytest-benchmark. Fails the test, or skips it, if there are none."""
        if not self.times_s:
            pytest.fail(self.lack, pytrace=False) if self.is_defect else pytest.skip(self.lack)
        self.replay.load(self.times_s)
        benchmark.pedantic(lambda: None, rounds=len(self.times_s), iterations=1)
        benchmark.extra_info.update(self.extra_info)


NAME = "batchproof-benchmarks"
Group = tuple[str, str]  # of cells
Row = Mapping[str, Any]


class Benchmarks:
    """The plugin that `--benchmark-only` registers. It holds what has been measured."""

    def __init__(self, config: pytest.Config, options: BenchSelection, path: Path) -> None:
        self._config = config
        self._options = options
        self._path = path
        self._engines: dict[Group, list[EngineSpec]] = defaultdict(list)
        self._found: dict[Group, Mapping[str, Any]] = {}
        self._run: BenchmarkRun | None = None
        self._is_over = False

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrizes the benchmark tests with engines and what they are measured on."""
        selection = self._config.stash[SELECTION]
        for name in FIXTURES.intersection(metafunc.fixturenames):
            cells = list(bench_cells(name, self._options, selection))
            ids = [f"{c.engine.name}-{c.label}-{c.model_name}-{selection.dtype}" for c in cells]
            metafunc.parametrize(name, cells, ids=ids, indirect=True)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Drops the placeholder items that pytest leaves for what is not measured."""

        def takes_part(item: pytest.Item) -> bool:
            is_asking = not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
            return not is_asking or _cell_of(item) is not None

        keep(config, items, takes_part)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Gives each benchmark the clock that replays its times, and the group it is shown in."""
        cell = _cell_of(item)
        if cell is not None:
            group = f"{cell.label} on {cell.model_name}"
            item.add_marker(pytest.mark.benchmark(timer=ReplayClock(), group=group))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Notes which engines are still selected: only they take part."""
        for item in session.items:
            cell = _cell_of(item)
            if cell is not None:
                self._engines[cell.group].append(cell.engine)

    @pytest.fixture
    def throughput(self, request: pytest.FixtureRequest) -> Measured:
        """One engine's row of a comparison, in vLLM's names, with what it was measured on. A row
        without figures is INVALID, or a round took too long: both are defects."""
        row, comparison = self._row(request.param), self._found[request.param.group]
        workload, model, clock = comparison["workload"], comparison["model"], comparison["clock"]
        about = {
            "engine": row["engine"],
            "verdict": row["verdict"],
            "workload": workload["name"],
            "workload_hash": workload["hash"],
            "model": model["name"],
            "dtype": model["dtype"],
            "clock": clock,
        }
        times_s = [each[f"{clock}_s"] for each in row["rounds"]]
        lack = f"{row['verdict']}: {row['reason']}"
        return Measured(times_s, about | (row["metrics"] or {}), lack, True, _clock_of(request.node))

    @pytest.fixture
    def growth(self, request: pytest.FixtureRequest) -> Measured:
        """How the time of one engine's step grows, of which the last point is timed. An engine that
        answers wrong is a defect; one that refused the model or had too little time is not."""
        entry = self._row(request.param)
        times_s = [each["seconds"] for each in entry["points"][-1:]]
        is_defect = entry["verdict"] == INVALID
        return Measured(times_s, entry, entry["words"], is_defect, _clock_of(request.node))

    def _row(self, cell: BenchCell) -> Row:
        """Returns the row of one engine, measuring the whole group if needed. Skips, by name, an engine
        that cannot take part.
        """
        lack = self._lack(cell, cell.engine)
        if lack is not None:
            pytest.skip(lack)
        if cell.group not in self._found:
            able = [each for each in self._engines[cell.group] if self._lack(cell, each) is None]
            with self._open() as run, self._bar() as on_step:
                self._found[cell.group] = cell.measure(run, able, on_step)
        rows: list[Row] = self._found[cell.group]["rows"]
        return next(each for each in rows if each["engine"] == cell.engine.name)

    def _lack(self, cell: BenchCell, engine: EngineSpec) -> str | None:
        """Why an engine cannot take part in the group of a cell; None if it can."""
        lab = self._config.stash[LAB]
        try:
            lab.capabilities(engine, lab.subject(cell.model_name))
        except UnsupportedModelError as error:
            return f"refused: {error}"
        return None

    @contextmanager
    def _open(self) -> Iterator[BenchmarkRun]:
        """Yields the run, which begins when it is first needed. pytest's capture is off, so that the
        bar is visible.

        pytest's `faulthandler_timeout` is cancelled, because a comparison may outlast any test and
        each of its rounds has a time limit of its own.
        """
        faulthandler.cancel_dump_traceback_later()
        capture = self._config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            if self._run is None:
                options = self._options
                lab = self._config.stash[LAB]
                self._run = BenchmarkRun(lab, options.terms, options.growth_s, self._path)
            yield self._run

    @contextmanager
    def _bar(self) -> Iterator[Callable[[str], None]]:
        """Shows the current piece of work on a terminal, unless -q was given."""
        is_quiet = self._config.getoption("verbose") < 0
        with tqdm(leave=False, disable=True if is_quiet else None) as bar:

            def begin(what: str) -> None:
                bar.set_description_str(what, refresh=False)
                bar.update()

            yield begin

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Completes the result file, unless the session was stopped."""
        self._is_over = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if self._run is not None and self._is_over:
            self._run.finish()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the figures and names the result file."""
        if self._run is None:
            return
        terminalreporter.section("Batchproof: benchmarks")
        measured = self._found.values()
        comparisons = [each for each in measured if "ratios" in each]
        growth = [row for each in measured if "ratios" not in each for row in each["rows"]]
        for line in table(comparisons, growth):
            terminalreporter.write_line(line)
        state = "" if self._is_over else " (INCOMPLETE: it was stopped; whole comparisons are kept)"
        terminalreporter.write_line(f"result file: {self._run.path}{state}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Adds the facts of the device to pytest-benchmark's description of the machine."""
        machine_info["batchproof"] = device_facts(self._config.stash[LAB].device)


def _cell_of(item: pytest.Item) -> BenchCell | None:
    params = getattr(getattr(item, "callspec", None), "params", {})
    return next((value for value in params.values() if isinstance(value, BenchCell)), None)


def _clock_of(item: pytest.Item) -> ReplayClock:
    marker = item.get_closest_marker("benchmark")
    clock = marker.kwargs["timer"] if marker else None
    assert isinstance(clock, ReplayClock), "it was put there when the test was collected"
    return clock


def register(config: pytest.Config, options: BenchSelection) -> None:
    """Registers the plugin of a benchmark run. Raises `UsageError` if the result file cannot be
    written.
    """
    path = result_path(options.results, config.stash[LAB].device.type)
    config.pluginmanager.register(Benchmarks(config, options, path), NAME)
