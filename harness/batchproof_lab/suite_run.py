"""Runs conformance tests against one engine from within Python, and reports what they found.

The self-tests, the kill table and the campaign against false alarms consist of suite runs. A process
that makes many passes one laboratory to them, so that models and right answers are computed once. A
run leaves the process as it found it, whatever the engine does.
"""

import io
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import import_module

import pytest
import torch
from hypothesis import Phase, core, settings

from batchproof.checks.environment import compute_exactly
from batchproof.models.catalogue import resolve_dtype
from batchproof.places import SUITE
from batchproof.plugin.items import record_of, trial_of
from batchproof.plugin.profiles import register_profiles
from batchproof.plugin.selection import LAB
from batchproof.run.devices import torch_restored
from batchproof.run.laboratory import Laboratory
from batchproof_lab.conformance_modules import function_of, modules_of_run


@cache
def process_laboratory(dtype_name: str, time_limit_s: float) -> Laboratory:
    """Returns the one laboratory of a worker process. Workers share the cores, so each uses one
    thread."""
    torch.set_num_threads(1)
    return Laboratory(torch.device("cpu"), resolve_dtype(dtype_name), time_limit_s)


@dataclass(frozen=True, slots=True)
class Effort:
    """How a suite run searches. The default is a plain run without shrinking."""

    profile: str | None = None  # None: the current one
    max_examples: int | None = None  # None: the profile's
    shrinks: bool = False
    first: tuple[str, ...] = ()  # the test functions that run before all others, in this order
    parts: int = 1  # of the selected tests: an engine meets one of them, the next engine the next


@dataclass(frozen=True, slots=True)
class Catch:
    test: str
    broken: str | None  # the promise the failure names; None: the harness itself broke
    report: str
    cause: str | None = None  # what the diagnosis names
    num_runs: int = 0  # workloads given to the engine until it was caught
    seconds: float = 0.0  # from the first test until then


@dataclass(slots=True)
class SuiteOutcome:
    catches: list[Catch] = field(default_factory=list)
    passed: Counter[str] = field(default_factory=Counter)  # tests, by engine
    exit_status: int = 0
    output: str = ""
    totals: Counter[str] = field(default_factory=Counter)  # all ledgers added up
    seconds: float = 0.0  # of all its tests

    @property
    def first(self) -> Catch | None:
        return next((each for each in self.catches if each.broken is not None), None)


@dataclass(eq=False)
class Recorder:
    """Fills in the outcome while the session runs, in the laboratory that it is given."""

    findings: SuiteOutcome
    effort: Effort
    lab: Laboratory | None
    began: float = 0.0  # the first test, in seconds since the epoch

    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
        """Hands the laboratory to the session before the options are resolved."""
        if self.lab is not None:
            early_config.stash[LAB] = self.lab

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_engine: dict[str, list[pytest.Item]] = {}
        for item in items:
            by_engine.setdefault((trial_of(item) or ("",))[0], []).append(item)
        own, parts = enumerate(by_engine.values()), self.effort.parts
        items[:] = [item for place, of_engine in own for item in of_engine[place % parts :: parts]]
        rank = {name: place for place, name in enumerate(self.effort.first)}
        items.sort(key=lambda item: rank.get(function_of(item.nodeid), len(rank)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        self.began = time.time()
        try:
            return (yield)
        finally:
            self.findings.seconds = time.time() - self.began

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        record = record_of(report)
        if report.when == "call" and record is not None:
            self.findings.passed[record.engine] += report.passed
            ledger = asdict(record.ledger).items()
            self.findings.totals.update({name: each for name, each in ledger if isinstance(each, int)})
        if report.failed:
            failure = record.failure if record else None
            self.findings.catches.append(
                Catch(
                    test=report.nodeid,
                    broken=failure.promise if failure else None,
                    report=report.longreprtext,
                    cause=failure.cause if failure else None,
                    num_runs=self.findings.totals["num_runs"],
                    seconds=report.stop - self.began,
                )
            )


AS_USUAL = Effort()
BROKEN_OFF = (
    pytest.ExitCode.INTERRUPTED,
    pytest.ExitCode.INTERNAL_ERROR,
    pytest.ExitCode.USAGE_ERROR,
    143,  # SIGTERM
)
SUITE_PROFILE = "suite-run"  # the nested session loads it; each run registers its own
PYTEST_OPTIONS = (
    *("-o", "addopts=", "--no-config"),
    "--disable-plugin-autoload",  # those of others cost more than many a run
    *("--import-mode=importlib", "-p", "no:cacheprovider"),
    *("-p", "no:unraisableexception"),  # collects garbage twice a session, longer than many a run
    *("-p", "no:logging"),  # puts handlers on each of torch's loggers at each test
    "--assert=plain",  # pytest warns of modules that are imported already and so not rewritten
)
PLUGINS = tuple(import_module(name) for name in ("_hypothesis_pytestplugin", "batchproof.plugin"))


def run_suite(
    engine: str, arguments: Sequence[str] = (), lab: Laboratory | None = None, effort: Effort = AS_USUAL
) -> SuiteOutcome:
    """Runs `tests/conformance` on the engine in this process and returns what was found.

    `arguments` are pytest's, such as `-x` or `-m`; a test id among them replaces the whole suite, and
    `--engine` adds another engine. A laboratory given is used by the tests; without one they make their
    own.
    """
    findings = SuiteOutcome()
    tests = [] if any("::" in each for each in arguments) else [str(SUITE)]
    command = [*tests, f"--engine={engine}", f"--hypothesis-profile={SUITE_PROFILE}", *PYTEST_OPTIONS]
    if lab is not None:  # what is known of engines is left behind: no run depends on an earlier one
        lab = lab.beside(lab.time_limit_s)
        command += [f"--device={lab.device}", f"--dtype={str(lab.dtype).removeprefix('torch.')}"]
        command.append(f"--engine-time-limit={lab.time_limit_s}")
        compute_exactly()  # as the run does: its models are compared in the same setting
    command += arguments
    with (
        _suite_profile(effort) as profile,
        modules_of_run(profile),
        ExitStack() as at_end,
        torch_restored(),  # before the laboratory looks after its models
        io.StringIO() as output,
        redirect_stdout(output),
        redirect_stderr(output),
    ):
        if lab is not None:
            at_end.callback(lab.drop_damaged)
        recorder = Recorder(findings, effort, lab)
        findings.exit_status = int(pytest.main(command, plugins=[*PLUGINS, recorder]))
        findings.output = output.getvalue()
    return findings


def own_failures(findings: SuiteOutcome) -> tuple[str, ...]:
    """Returns the reports of failures of the harness itself, which name no promise."""
    if findings.exit_status in BROKEN_OFF:
        return (f"pytest ended with status {findings.exit_status}: {findings.output[-2000:]}",)
    return tuple(f"{each.test}: {each.report}" for each in findings.catches if each.broken is None)


@contextmanager
def _suite_profile(effort: Effort) -> Iterator[str]:
    """Registers the Hypothesis profile of a run and yields its settings as a text; restores profile and
    seed afterwards."""
    register_profiles()  # a worker has not read the plugin's options yet
    outer_name, outer_seed = settings.get_current_profile_name(), core.global_force_seed
    outer = settings.get_profile(effort.profile or outer_name)
    inner = settings(
        outer,
        phases=[*([Phase.shrink] if effort.shrinks else []), Phase.explicit, Phase.generate],
        database=None,
        max_examples=effort.max_examples or outer.max_examples,
    )
    settings.register_profile(SUITE_PROFILE, inner)
    try:
        yield repr(inner)
    finally:
        settings.load_profile(outer_name)
        core.global_force_seed = outer_seed
