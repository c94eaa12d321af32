"""`pytest --benchmark-only`: engines timed interleaved, reported one by one.

pytest-benchmark runs one test after the other and cannot interleave engines. The first test of a
comparison therefore runs all engines that were selected for it; each test then reports its own.
"""

import faulthandler
from collections import defaultdict, deque
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
from batchproof.bench.spec import BenchSpec, BenchWorkload
from batchproof.bench.tables import table
from batchproof.errors import EngineHang, UnsupportedModelError, UsageError
from batchproof.plugin.bench_selection import BenchSelection
from batchproof.plugin.selection import LAB, SELECTION, Selection
from batchproof.run.registry import EngineSpec

MAX_REFERENCE_TOKENS = 8192  # output tokens of a round; the default reference skips longer ones


@dataclass(frozen=True, slots=True)
class BenchCell:
    """The parameter of one benchmark test."""

    workload: BenchSpec
    model_name: str
    engine: EngineSpec

    @property
    def group(self) -> tuple[str, str]:
        """The key of the engines that run interleaved."""
        return self.workload.label, self.model_name


def _cells(options: BenchSelection, selection: Selection) -> Iterator[BenchCell]:
    for spec, model_name, engine in product(options.specs, options.model_names, selection.engines):
        is_long = spec.mean_output_tokens > MAX_REFERENCE_TOKENS
        if not (is_long and engine.name in selection.yardsticks):
            yield BenchCell(spec, model_name, engine)


@dataclass(frozen=True)
class Measured:
    """What one engine showed. `lack` says why there are no times. From `readings` the clock of
    pytest-benchmark takes what it reads."""

    times_s: Sequence[float]
    extra_info: Mapping[str, Any]
    lack: str
    readings: deque[float]

    def report_to(self, benchmark: BenchmarkFixture) -> None:
        """Passes the times to pytest-benchmark, whose own loop cannot interleave engines: it times as
        many rounds of nothing, and reads the clock before and after each. Fails the test if there are
        none."""
        if not self.times_s:
            pytest.fail(self.lack, pytrace=False)
        self.readings.extend(reading for each in self.times_s for reading in (0.0, each))
        benchmark.pedantic(lambda: None, rounds=len(self.times_s), iterations=1)
        benchmark.extra_info.update(self.extra_info)


NAME = "batchproof-benchmarks"
Group = tuple[str, str]  # of cells


class Benchmarks:
    """The plugin that `--benchmark-only` registers. It holds what has been measured."""

    def __init__(self, config: pytest.Config, options: BenchSelection, path: Path) -> None:
        self._config = config
        self._options = options
        self._path = path
        self._readings: deque[float] = deque()  # seconds, for the clock of pytest-benchmark
        self._engines: dict[Group, list[EngineSpec]] = defaultdict(list)
        self._found: dict[Group, Mapping[str, Any]] = {}
        self._run: BenchmarkRun | None = None
        self._is_over = False

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "throughput" not in metafunc.fixturenames:
            return
        selection = self._config.stash[SELECTION]
        cells = list(_cells(self._options, selection))
        ids = [f"{c.engine.name}-{'-'.join(c.group)}-{selection.dtype}" for c in cells]
        metafunc.parametrize("throughput", cells, ids=ids, indirect=True)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Gives each benchmark the clock that replays its times, and the group it is shown in."""
        cell = _cell_of(item)
        if cell is not None:
            group = " on ".join(cell.group)
            item.add_marker(pytest.mark.benchmark(timer=self._readings.popleft, group=group))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Notes which engines are still selected: only they take part."""
        for item in session.items:
            cell = _cell_of(item)
            if cell is not None:
                self._engines[cell.group].append(cell.engine)

    @pytest.fixture
    def throughput(self, request: pytest.FixtureRequest) -> Measured:
        """One engine's row of a comparison, in vLLM's names, with what it was measured on. A row
        without figures is INVALID, or a round took too long: both are defects. Skips, by name, an
        engine that cannot take part."""
        cell: BenchCell = request.param
        lack = self._lack(cell, cell.engine)
        if lack is not None:
            if cell.engine.name in self._config.stash[LAB].lost:
                pytest.fail(f"UNVERIFIED: {lack}", pytrace=False)
            pytest.skip(lack)
        if cell.group not in self._found:
            subject = self._config.stash[LAB].subject(cell.model_name)
            try:  # before there is a result file
                workload = cell.workload.realise(subject.vocab_size, subject.context_len)
            except UsageError as error:
                raise pytest.fail.Exception(str(error), pytrace=False) from None
            self._found[cell.group] = self._compare(cell, workload)
        comparison = self._found[cell.group]
        row = next(each for each in comparison["rows"] if each["engine"] == cell.engine.name)
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
        why = f"{row['verdict']}: {row['reason']}"
        return Measured(times_s, about | (row["metrics"] or {}), why, self._readings)

    def _compare(self, cell: BenchCell, workload: BenchWorkload) -> Mapping[str, Any]:
        """Measures the whole group of a cell, but for engines that cannot take part."""
        able = [each for each in self._engines[cell.group] if self._lack(cell, each) is None]
        if self._run is None:
            self._run = BenchmarkRun(self._config.stash[LAB], self._options.terms, self._path)
        with self._bar() as on_step:
            return self._run.compare(workload, cell.model_name, able, on_step)

    def _lack(self, cell: BenchCell, engine: EngineSpec) -> str | None:
        """Why an engine cannot take part in the group of a cell; None if it can."""
        lab = self._config.stash[LAB]
        try:
            lab.capabilities(engine, lab.subject(cell.model_name))
        except UnsupportedModelError as error:
            return f"refused: {error}"
        except EngineHang as hang:
            return f"{hang.what} (--engine-time-limit)"
        return None

    @contextmanager
    def _bar(self) -> Iterator[Callable[[str], None]]:
        """Shows the current piece of work on a terminal, past pytest's capture, unless -q was given.

        pytest's `faulthandler_timeout` is cancelled, because a comparison may outlast any test and
        each of its rounds has a time limit of its own.
        """
        faulthandler.cancel_dump_traceback_later()
        is_quiet = self._config.getoption("verbose") < 0
        capture = self._config.pluginmanager.getplugin("capturemanager")
        with (
            capture.global_and_fixture_disabled(),
            tqdm(leave=False, disable=True if is_quiet else None) as bar,
        ):

            def begin(what: str) -> None:
                bar.set_description_str(what, refresh=False)
                bar.update()

            yield begin

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._is_over = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if self._run is not None and self._is_over:
            self._run.file.finish()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._run is None:
            return
        terminalreporter.section("Batchproof: benchmarks")
        for line in table(self._found.values()):
            terminalreporter.write_line(line)
        state = "" if self._is_over else " (INCOMPLETE: it was stopped; whole comparisons are kept)"
        terminalreporter.write_line(f"result file: {self._run.file.path}{state}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Adds the facts of the device to pytest-benchmark's description of the machine."""
        machine_info["batchproof"] = device_facts(self._config.stash[LAB].device)


def _cell_of(item: pytest.Item) -> BenchCell | None:
    params = getattr(getattr(item, "callspec", None), "params", {})
    return next((value for value in params.values() if isinstance(value, BenchCell)), None)


def register(config: pytest.Config, options: BenchSelection) -> None:
    """Registers the plugin of a benchmark. Raises `UsageError` if the result file cannot be written."""
    path = result_path(options.results, config.stash[LAB].device.type)
    config.pluginmanager.register(Benchmarks(config, options, path), NAME)
