"""How a session ends: the table engine x promise, and whether it proves anything.

It fails closed. A session fails if it compared nothing at all, or only tokens of a model that could not
have shown a fault. This module imports no torch: with workers, the controller prints what they found.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from batchproof.plugin.problems import HEARD, TOLD
from batchproof.plugin.promise_table import (
    adequacies,
    error_units,
    in_order,
    notes,
    num_compared,
    outcomes_of,
    table,
)
from batchproof.plugin.selection import SELECTION
from batchproof.records.made import ENDED
from batchproof.requirements.tally import Outcome

NOTHING_COMPARED = "NOTHING WAS COMPARED: this run proves nothing about any engine"


def _session_outcomes(config: pytest.Config) -> list[Outcome]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or SELECTION not in config.stash:  # of a worker with wrong options
        return []
    kinds = ("passed", "failed", "error", "skipped", "xfailed")
    found = outcomes_of(report for kind in kinds for report in reporter.stats.get(kind, ()))
    selection = config.stash[SELECTION]
    return in_order(found, [spec.name for spec in selection.engines], selection.model_names)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Sets the exit status to failed if nothing, or too little, was compared, and to a usage error if
    nothing failed but wrong cases.
    """
    if hasattr(session.config, "workerinput"):
        return  # an xdist worker: its controller judges the whole
    if ENDED in os.environ:
        Path(os.environ[ENDED]).touch()
    outcomes = _session_outcomes(session.config)
    is_clean = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    proves_little = not num_compared(outcomes) or any(record.is_inadequate for _, record in outcomes)
    if outcomes and is_clean and proves_little:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    num_wrong = sum(record.is_wrong_input for _, record in outcomes)
    if num_wrong and num_wrong == session.testsfailed:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the table engine x promise and what limits its meaning."""
    outcomes = _session_outcomes(terminalreporter.config)
    if not outcomes:
        _report_empty_selection(terminalreporter)
        return
    write = terminalreporter.write_line
    terminalreporter.section("Batchproof: engine x promise")
    for line in table(outcomes):
        write(line)
    for model, error_unit in error_units(outcomes):
        write(f"model {model}: E {error_unit:.2g}, the reference's own worst logit error")
    for model, adequacy, is_too_little in adequacies(outcomes):
        verdict = "INADEQUATE: equal tokens prove little on this model" if is_too_little else "adequate"
        write(f"model {model}: {verdict}; {adequacy}", red=is_too_little)
    for note in notes(outcomes):
        write(f"note: {note}")
    num_wrong = sum(record.is_wrong_input for _, record in outcomes)
    if num_wrong:
        write(f"{num_wrong} failed by a wrong case, not by an engine: see above", red=True)
    if num_own := sum(record.is_own_failure for _, record in outcomes) - num_wrong:
        write(f"{num_own} failed by the harness itself, not by an engine: see above", red=True)
    if not num_compared(outcomes) and not any(outcome == "failed" for outcome, _ in outcomes):
        write(NOTHING_COMPARED, red=True, bold=True)


def _report_empty_selection(terminalreporter: pytest.TerminalReporter) -> None:
    """Reports that -k and -m left no conformance test; pytest itself prints only what it deselected."""
    option = terminalreporter.config.option
    chosen = [f"{k} {v!r}" for k, v in (("-k", option.keyword), ("-m", option.markexpr)) if v]
    did_run = any(terminalreporter.stats.get(kind) for kind in ("passed", "failed", "error", "skipped"))
    left_out = terminalreporter.stats.get("deselected", ())
    if getattr(option, "benchmark_only", False) and did_run:
        return
    stash = terminalreporter.config.stash
    if terminalreporter.stats.get("error") or HEARD in stash or TOLD in stash:
        return  # what could not be collected, or is wrong with the run, is printed
    if chosen and (not did_run or any("trial" in item.fixturenames for item in left_out)):
        words = f"no conformance test was selected by {' '.join(chosen)}: this run proves nothing"
        terminalreporter.write_line(words, red=not did_run)
