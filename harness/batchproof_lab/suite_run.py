"""Runs conformance tests against one engine from within Python, and reports what they found.

The self-tests, the kill table and the campaign against false alarms consist of suite runs. A process
that makes many passes one laboratory to them, so that models and right answers are computed once. A
run leaves the process as it found it, whatever the engine does.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from importlib import import_module

import pytest
from hypothesis import Phase, core, settings

from batchproof.places import SUITE
from batchproof.plugin.profiles import register_profiles
from batchproof.run.devices import torch_restored
from batchproof_lab.conformance_modules import conformance_modules, fresh_engines
from batchproof_lab.shared_laboratory import SharedLaboratory
from batchproof_lab.suite_outcome import Catch, Effort, Recorder, SuiteOutcome

__all__ = ["Catch", "Effort", "SuiteOutcome", "run_suite"]

AS_USUAL = Effort()
BROKEN_OFF = (
    pytest.ExitCode.INTERRUPTED,
    pytest.ExitCode.INTERNAL_ERROR,
    pytest.ExitCode.USAGE_ERROR,
    143,  # SIGTERM
)
SUITE_PROFILE = "suite-run"  # the nested session loads it; registered anew for each run
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
    engine: str,
    arguments: Sequence[str] = (),
    lab: SharedLaboratory | None = None,
    effort: Effort = AS_USUAL,
) -> SuiteOutcome:
    """Runs `tests/conformance` on the engine in this process and returns what was found.

    `arguments` are pytest's, such as `-x` or `-m`; a test id among them replaces the whole suite. A
    laboratory given is used by the tests; without one they make their own.
    """
    findings = SuiteOutcome()
    tests = [] if any("::" in each for each in arguments) else [str(SUITE)]
    command = [*tests, f"--engine={engine}", f"--hypothesis-profile={SUITE_PROFILE}", *PYTEST_OPTIONS]
    command += [*(lab.arguments if lab else ()), *arguments]
    with (
        _suite_profile(effort) as profile,
        conformance_modules(profile),
        fresh_engines(),
        lab.session() if lab else nullcontext(),
        torch_restored(),  # before the laboratory looks after its models
        io.StringIO() as output,
        redirect_stdout(output),
        redirect_stderr(output),
    ):
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
