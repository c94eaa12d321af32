"""`pytest --benchmark-only`: engines timed interleaved, reported one by one.

pytest-benchmark runs one test after the other and cannot interleave engines. The first test of a
comparison therefore runs all engines that were selected for it; each test then reports its own.
"""

from __future__ import annotations

import faulthandler
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm  # type: ignore[import-untyped]

from batchproof.bench.benchmark_run import BenchmarkRun, result_path
from batchproof.bench.hardware import device_facts
from batchproof.errors import UnsupportedModelError
from batchproof.plugin.bench_selection import BenchSelection
from batchproof.plugin.bench_table import load_table, table
from batchproof.plugin.contests import CONTESTS, GROWTH, LOAD, THROUGHPUT, Contest
from batchproof.plugin.deselection import keep
from batchproof.plugin.measured import Measured, MeasuredGrowth, MeasuredLoad, ReplayClock
from batchproof.plugin.selection import LAB, SELECTION
from batchproof.run.registry import EngineSpec

NAME = "batchproof-benchmarks"
Group = tuple[str, str, str]  # of a contest
Row = Mapping[str, Any]


class Benchmarks:
    """The plugin that `--benchmark-only` registers. It holds what has been measured."""

    def __init__(self, config: pytest.Config, options: BenchSelection, path: Path) -> None:
        self._config = config
        self._options = options
        self._path = path
        self._entrants: dict[Group, list[EngineSpec]] = defaultdict(list)
        self._found: dict[Group, Mapping[str, Any]] = {}
        self._run: BenchmarkRun | None = None
        self._is_over = False

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrizes the benchmark tests with engines and what they are measured on."""
        selection = self._config.stash[SELECTION]
        for name, contests in CONTESTS.items():
            if name in metafunc.fixturenames:
                found = list(contests(self._options, selection))
                ids = [f"{c.engine.name}-{c.label}-{c.model_name}-{selection.dtype}" for c in found]
                metafunc.parametrize(name, found, ids=ids, indirect=True)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Drops the placeholder items that pytest leaves for what is not measured."""

        def takes_part(item: pytest.Item) -> bool:
            is_asking = bool({*CONTESTS} & {*getattr(item, "fixturenames", ())})
            return not is_asking or _contest_of(item) is not None

        keep(config, items, takes_part)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Gives each benchmark the clock that replays its times, and the group it is shown in."""
        contest = _contest_of(item)
        if contest is not None:
            group = f"{contest.label} on {contest.model_name}"
            item.add_marker(pytest.mark.benchmark(timer=ReplayClock(), group=group))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Notes which engines are still selected: only they take part."""
        for item in session.items:
            contest = _contest_of(item)
            if contest is not None:
                self._entrants[contest.group].append(contest.engine)

    @pytest.fixture
    def measured(self, request: pytest.FixtureRequest) -> Measured:
        """Returns one engine's row of a comparison."""
        row = self._row(request.param)
        return Measured(row, self._found[request.param.group], _clock_of(request.node))

    @pytest.fixture
    def growth(self, request: pytest.FixtureRequest) -> MeasuredGrowth:
        """Returns one engine's cost along one axis."""
        return MeasuredGrowth(self._row(request.param), _clock_of(request.node))

    @pytest.fixture
    def load_sweep(self, request: pytest.FixtureRequest) -> MeasuredLoad:
        """Returns one engine's figures at rising load."""
        return MeasuredLoad(self._row(request.param), _clock_of(request.node))

    def _row(self, contest: Contest) -> Row:
        """Returns the row of one engine, measuring the whole group if needed. Skips, by name, an engine
        that cannot take part.
        """
        able = self._able(contest)
        if contest.group not in self._found:
            with self._open() as run, self._bar(contest.num_pieces(run, able)) as on_piece:
                self._found[contest.group] = contest.measure(run, able, on_piece)
        rows: list[Row] = self._found[contest.group]["rows"]
        return next(each for each in rows if each["engine"] == contest.engine.name)

    def _of(self, fixture: str) -> list[Mapping[str, Any]]:
        return [found for group, found in self._found.items() if group[0] == fixture]

    def _rows(self, fixture: str) -> list[Row]:
        return [row for found in self._of(fixture) for row in found["rows"]]

    def _able(self, contest: Contest) -> list[EngineSpec]:
        """Returns the engines of the group that can take part. Skips the test, by name, if its own
        cannot.
        """
        lack = self._lack(contest.engine, contest)
        if lack is not None:
            pytest.skip(lack)
        return [e for e in self._entrants[contest.group] if self._lack(e, contest) is None]

    def _lack(self, engine: EngineSpec, contest: Contest) -> str | None:
        lab = self._config.stash[LAB]
        try:
            lab.capabilities(engine, lab.subject(contest.model_name))
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
    def _bar(self, total: int) -> Iterator[Callable[[str], None]]:
        """Shows the current piece of work on a terminal, unless -q was given."""
        is_quiet = self._config.getoption("verbose") < 0
        with tqdm(total=total, leave=False, disable=True if is_quiet else None) as bar:

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
        growth, load = self._rows(GROWTH), self._rows(LOAD)
        for line in (*table(self._of(THROUGHPUT), growth), *load_table(load)):
            terminalreporter.write_line(line)
        state = "" if self._is_over else " (INCOMPLETE: it was stopped; whole comparisons are kept)"
        terminalreporter.write_line(f"result file: {self._run.path}{state}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Adds the facts of the device to pytest-benchmark's description of the machine."""
        machine_info["batchproof"] = device_facts(self._config.stash[LAB].device)


def _contest_of(item: pytest.Item) -> Contest | None:
    params = getattr(getattr(item, "callspec", None), "params", {})
    return next((value for value in params.values() if isinstance(value, Contest)), None)


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
