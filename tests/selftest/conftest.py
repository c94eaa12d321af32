"""Small suites of conformance tests, made by a test and run under the plugin."""

import io
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import settings
from packaging.version import Version

from batchproof.models.catalogue import load_model
from batchproof.oracle.oracle import Oracle
from batchproof.plugin.selection import LAB
from batchproof.run.devices import num_threads
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import reference_factory
from batchproof.workload.workloads import DEFAULT_TIME_LIMIT_S
from batchproof_lab.conformance_modules import function_of
from tests.selftest.adapters.stand_in_server import StandIn

ARGUMENTS = ["-ra", "-p", "batchproof.plugin", "-p", "no:cacheprovider", "--import-mode=importlib"]
ARGUMENTS += ["-p", "no:unraisableexception"]  # collects garbage five times a session
SESSION: list[pytest.Config] = []  # of these tests
DEFAULTS = ("--engine=static", "--model=gpt2-random", "--no-isolate", "--diagnose-for=0")

# What a small suite begins with, and tests that several of them have.
HEAD = """
import pytest
from batchproof.api import Request
from batchproof.checks.broken import broken
from batchproof.findings.finding import Rule
from batchproof.requirements.promises import Promise
from batchproof.workload.workloads import Workload

WORKLOAD = Workload((Request("a", (1, 2), 2),))
"""
RIGHT = """
@pytest.mark.promise(id="P1")
def test_right(trial):
    trial.check(WORKLOAD)
"""
LACKING = """
@pytest.mark.promise(id="P14")
@pytest.mark.needs("stepping")
def test_lacking(trial):
    trial.check(WORKLOAD)
"""

# An engine that refuses some models.
CHOOSY = """
from batchproof.errors import UnsupportedModelError
from batchproof_engines.static import static

def choosy(model, config):
    if REFUSED in type(model).__name__:
        raise UnsupportedModelError("not that one")
    return static(model, config)
"""


@dataclass(frozen=True, slots=True)
class Session:
    exit_status: int
    output: str

    def cell(self, promise: str) -> str:
        """Of the first engine, in the table engine x promise."""
        table = self.output.partition("engine x promise")[2].splitlines()
        line = next(each for each in table if each.startswith(promise))
        return line.removeprefix(promise).strip()

    def require_usage_error(self, words: str) -> None:
        """Requires that it ended before a test, in a sentence with these words."""
        assert self.exit_status == pytest.ExitCode.USAGE_ERROR, self.output
        assert words in self.output
        assert "Traceback" not in self.output


IS_TESTED_TRANSFORMERS = Version(transformers.__version__) >= Version("5.23")
needs_psutil = pytest.mark.skipif(
    not IS_TESTED_TRANSFORMERS and find_spec("psutil") is None,
    reason="older versions of transformers ask psutil for the memory of a CPU before they batch",
)
RunSuite = Callable[..., Session]
LaboratoryFor = Callable[[float], Laboratory]


@pytest.fixture(scope="session")
def laboratory_for() -> LaboratoryFor:
    """`laboratory_for(time_limit_s)` is a laboratory on the CPU for engines that may damage a model,
    with the models and right answers of this session."""
    return known().beside


def oracle_of(name: str, dtype: torch.dtype = torch.float32) -> Oracle:
    """Returns the right answers of a model on the CPU, measured anew."""
    return Oracle(load_model(name, torch.device("cpu"), dtype), reference_factory())


@pytest.fixture(autouse=True)
def few_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """E is measured on few prompts. That bounds by far what is wrong here, and takes long otherwise."""
    monkeypatch.setattr("batchproof.oracle.oracle.NUM_CALIBRATION_PROMPTS", 3)


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    """That of a small model, for tests of the rules."""
    return oracle_of("gpt2-random")


def pytest_configure(config: pytest.Config) -> None:
    SESSION.append(config)
    words = "every(n): its cases take long; where none are chosen, and no profile, one of n is met"
    config.addinivalue_line("markers", words)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out cases of long tests, unless tests are chosen among those of the files, or a profile
    is."""
    ways = ("-k", "-m", "--lf", "--hypothesis-profile")
    is_chosen = any(config.getoption(each, default=None) for each in ways)
    if is_chosen or any("::" in each for each in config.args):
        return
    met: Counter[str] = Counter()
    met_now, left_out = [], []
    for item in items:
        mark, function = item.get_closest_marker("every"), function_of(item.nodeid)
        is_due = mark is None or met[function] % mark.args[0] == 0
        (met_now if is_due else left_out).append(item)
        met[function] += mark is not None
    config.hook.pytest_deselected(items=left_out)
    items[:] = met_now


@cache
def known() -> Laboratory:
    """Returns the laboratory of the session of these tests, unless that is about something else."""
    usual = Laboratory(torch.device("cpu"), torch.float32, DEFAULT_TIME_LIMIT_S)
    own = SESSION[0].stash.get(LAB, usual) if SESSION else usual
    is_usual = (own.device, own.dtype, own.precision) == (usual.device, usual.dtype, usual.precision)
    return own if is_usual else usual


class Known:
    """A plugin that gives a session the models and right answers of those before it, which take longer
    than its tests, unless it asks for others."""

    OTHERS = ("--dtype", "--compute-dtype", "--kv-cache-dtype", "--device", "--benchmark-only")

    def pytest_load_initial_conftests(self, early_config: pytest.Config, args: list[str]) -> None:
        """Comes before the plugin under test makes its own."""
        if not any(each.startswith(self.OTHERS) for each in args):
            limits = [each.partition("=")[2] for each in args if each.startswith("--engine-time-limit")]
            limit_s = float(limits[-1]) if limits else DEFAULT_TIME_LIMIT_S
            early_config.stash[LAB] = known().beside(limit_s)


def session_of(command: list[str]) -> Session:
    """Runs pytest in this process."""
    with io.StringIO() as output, redirect_stdout(output), redirect_stderr(output):
        try:
            return Session(int(pytest.main(command, plugins=[Known()])), output.getvalue())
        finally:
            known().drop_damaged()


def run_in(folder: Path, *arguments: str, defaults: Sequence[str] = DEFAULTS) -> Session:
    """Runs the tests of a folder in this process, on `static` and a small model unless others are
    named, and without workers, whose start takes seconds, unless they are asked for. Without
    `defaults`, no argument is added."""
    (folder / "pytest.ini").write_text("[pytest]\nstrict = true\n")
    outer_profile, loaded = settings.get_current_profile_name(), set(sys.modules)
    command = [*ARGUMENTS, *arguments]
    for default in defaults:
        option = default.partition("=")[0].replace("--no-", "--")
        if not any(each.startswith(option) for each in arguments):
            command.append(default)
    with chdir(folder):
        try:
            return session_of(command)
        finally:
            settings.load_profile(outer_profile)
            for name in set(sys.modules) - loaded:
                if name.startswith("test_"):
                    del sys.modules[name]


@pytest.fixture
def run_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSuite:
    """`run_suite(*arguments, **modules)` runs the tests in `tmp_path`, which is the current folder, and
    to which modules are written by name and text."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, defaults: Sequence[str] = DEFAULTS, **modules: str) -> Session:
        for name, text in modules.items():
            Path(f"{name}.py").write_text(text)
        return run_in(tmp_path, *arguments, defaults=defaults)

    return run


@pytest.fixture
def heard_again() -> Iterator[None]:
    """SIGTERM is heard again after a test that sends one: a session ignores a second one, and whatever
    it starts would ignore the first."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models on a busy machine wait for their second thread most of the time."""
    with num_threads(1):
        yield


@pytest.fixture
def server() -> Iterator[StandIn]:
    """A completions server that runs."""
    with StandIn() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class OneProcess(nullcontext[Any]):
    """A pool without workers: importing torch once more takes longer than a small campaign."""

    def __init__(self, num_workers: int, time_limit_s: float) -> None:
        super().__init__(self)
        assert num_workers == 1
        assert time_limit_s > 0

    def run(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        return ((task, function(task)) for task in tasks)


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Campaigns have no workers."""
    monkeypatch.setattr("batchproof_lab.campaign.WorkerPool", OneProcess)
