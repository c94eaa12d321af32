"""Run conformance tests against one engine from within Python, and say what they found.

The self-tests, the kill table and the campaign against false alarms are made of suite runs. A process
that makes many gives them one laboratory, so that models and right answers are paid for once. A suite
run leaves the process as it found it, whatever the engine does.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout

import pytest
from hypothesis import Phase, core, settings

from batchproof.campaign.findings import (
    Catch,
    Effort,
    Findings,
    Recorder,
)
from batchproof.campaign.modules import conformance_modules, fresh_engines
from batchproof.campaign.shared_laboratory import SharedLaboratory, torch_restored
from batchproof.places import SUITE

__all__ = ["Catch", "Effort", "Findings", "run_suite"]

AS_USUAL = Effort()
SUITE_PROFILE = "suite-run"  # a name the nested session may load; made anew for each suite run
PYTEST_OPTIONS = (
    *("-p", "no:cacheprovider", "-p", "no:xdist"),
    *("-p", "no:unraisableexception"),  # collects garbage twice a session: longer than many a suite run
    "--assert=plain",  # pytest warns of what it cannot rewrite because it is imported already
)


def run_suite(
    engine: str,
    arguments: Sequence[str] = (),
    lab: SharedLaboratory | None = None,
    effort: Effort = AS_USUAL,
) -> Findings:
    """Run `tests/conformance` on the engine, with more pytest arguments such as `-x` or `-m`.

    A test id among the arguments takes the place of all tests.
    """
    findings = Findings()
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
        findings.exit_status = int(pytest.main(command, plugins=[recorder]))
        findings.output = output.getvalue()
    return findings


@contextmanager
def _suite_profile(effort: Effort) -> Iterator[str]:
    """Register the profile; yields a text that tells its settings. Afterwards profile and seed of
    Hypothesis are what they were."""
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
