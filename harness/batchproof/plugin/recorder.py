"""The recorder: collects the reports of all tests, settles the exit status, and calls the writers.

It runs in the process that hears of all tests: the controller, if there are workers. A test has one
entry, which is made at its end and written to the journal at once; all else that a run writes is a
function of the list of entries. A session fails if it compared nothing at all, or only tokens of a
model that could not have shown a fault.
"""

import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from batchproof.errors import Interrupt, UsageError
from batchproof.plugin.deselection import Deselection
from batchproof.plugin.items import AGAIN_OPTIONS, options_given, record_of
from batchproof.plugin.outputs import Outputs
from batchproof.plugin.problems import HEARD
from batchproof.plugin.selection import SELECTION
from batchproof.plugin.writers.page import FinishedRun, failed_tests, summary_page
from batchproof.plugin.writers.table import notes, num_compared, outcomes_of, summary_lines
from batchproof.records.file_kinds import replace_text
from batchproof.records.journal import TESTS, JournalEntry, NoHead, entries
from batchproof.records.provenance import ENDED, Provenance, made_now, pytest_line
from batchproof.records.table import CONFORMANCE, ConformanceTable
from batchproof.records.texts import counted
from batchproof.records.verdict import VERDICT, Conditions, EngineVerdict
from batchproof.requirements.promises import Promise
from batchproof.requirements.verdict_of_journal import (
    Outcome,
    cells_of,
    totals_of,
    verdict_of,
    without_local_paths,
)

SIGTERM_STATUS = 143


def exit_status(
    status: int,
    outcomes: Sequence[Outcome],
    num_failed: int = 0,
    is_cut_short: bool = False,
    signal_status: int | None = None,
    has_problem: bool = False,
) -> int:
    """Returns the status of a session: failed as well if nothing, or too little, was compared, and a
    usage error if nothing failed but wrong cases.

    `status` is pytest's own; `num_failed` counts tests of other things as well; `is_cut_short`: by its
    failures, as with -x; `signal_status` is of the signal that ended it; `has_problem`: a worker found
    one, and ran no test.
    """
    num_wrong = sum(record.is_wrong_input for _, record in outcomes)
    if has_problem or (num_wrong and num_wrong == num_failed):
        return pytest.ExitCode.USAGE_ERROR
    if signal_status == SIGTERM_STATUS:
        return SIGTERM_STATUS
    if status == pytest.ExitCode.INTERRUPTED and is_cut_short and signal_status is None:
        # xdist takes what -x ended for interrupted, as it is where tests could not be collected.
        return pytest.ExitCode.TESTS_FAILED if num_failed else status
    is_clean = status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    is_inadequate = any(record.is_inadequate for _, record in outcomes)
    proves_little = bool(outcomes) and (is_inadequate or not num_compared(outcomes))
    return pytest.ExitCode.TESTS_FAILED if is_clean and proves_little else status


FINISHED = "batchproof_finished"  # in a worker's input: the tests that the journal holds
LAST_PHASES = ("teardown", "???")  # ???: the process of a worker is gone
REPEATED = (*(each for each in AGAIN_OPTIONS if each != "--engine"), "--hypothesis-profile")


class Recorder:
    """The plugin. It owns the entries of the session."""

    def __init__(self, config: pytest.Config, outputs: Outputs, deselection: Deselection) -> None:
        self._config, self._outputs, self._deselection = config, outputs, deselection
        journal = outputs.journal
        self._writer = TESTS.append_to(journal, NoHead()) if journal else None
        self._earlier = {each.test: each for each in entries(journal)} if journal else {}
        self._reports: dict[str, list[pytest.TestReport]] = {}  # of tests under way
        self._entries: list[JournalEntry] = []
        self._verdict: EngineVerdict | None = None
        self._signal_status: int | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reports = self._reports.setdefault(report.nodeid, [])
        reports.append(report)
        if report.when in LAST_PHASES:
            entry = entry_of(self._reports.pop(report.nodeid))
            self._entries.append(entry)
            if self._writer is not None:
                self._writer.append(entry)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Gives a worker the finished tests: one that replaces a dead one must see the same tests."""
        node.workerinput[FINISHED] = sorted(self._earlier)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        if isinstance(excinfo.value, Interrupt):
            self._signal_status = excinfo.value.exit_code

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Settles the exit status, and writes the files if there were conformance tests."""
        if ENDED in os.environ:
            Path(os.environ[ENDED]).touch()
        was_stopped = session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        is_whole = not (was_stopped or session.shouldstop or session.shouldfail)  # no test is missing
        self._verdict = self._reach_verdict(is_whole)
        outcomes = self._outcomes()
        session.exitstatus = exit_status(
            int(session.exitstatus),
            outcomes,
            num_failed=len(failed_tests(self._entries)),
            is_cut_short=bool(session.shouldfail),
            signal_status=self._signal_status,
            has_problem=HEARD in self._config.stash,
        )
        if self._verdict is not None and self._outputs.verdict is not None:
            VERDICT.write(without_local_paths(self._verdict), self._outputs.verdict)
        if outcomes and self._outputs.table is not None:
            table = self._table(outcomes, int(session.exitstatus), is_whole)
            CONFORMANCE.write(table, self._outputs.table)
            if self._outputs.artifacts is not None:
                folder, verdict = self._outputs.artifacts, self._verdict
                run = FinishedRun(table, self._entries, folder, verdict, self._selection())
                replace_text(folder / "summary.md", summary_page(run))

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> None:
        outcomes = self._outcomes()
        write = terminalreporter.write_line
        if outcomes:
            terminalreporter.section("Batchproof: engine x promise")
            for line, is_bad in summary_lines(outcomes):
                write(line, red=is_bad)
        elif exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR):
            pass  # what is selected may not be known yet
        elif (words := self._empty_selection(terminalreporter)) is not None:
            write(words, red=not self._entries)
        for line in self._files(bool(outcomes)):
            write(line)

    def pytest_unconfigure(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _outcomes(self) -> list[Outcome]:
        selection = self._config.stash[SELECTION]
        names = [spec.name for spec in selection.engines]
        return outcomes_of(self._entries, names, selection.model_names)

    def _reach_verdict(self, is_whole: bool) -> EngineVerdict | None:
        """Returns the verdict on the engine, if it is asked for: on the tests of the journal too."""
        finished = self._earlier | {each.test: each for each in self._entries}
        if self._outputs.verdict is None or not any(each.record for each in finished.values()):
            return None
        left_out = self._deselection
        is_whole &= not (left_out.is_uncounted or left_out.num_without(finished))
        (engine,) = (spec.name for spec in self._config.stash[SELECTION].engines)
        # Tests without a record count for the one engine of the run.
        own = [each for each in finished.values() if not each.record or each.record.engine == engine]
        made = self._made()
        return verdict_of(engine, own, is_whole, made, made.command, self._conditions())

    def _made(self) -> Provenance:
        return made_now(pytest_line(self._config.invocation_params.args))

    def _conditions(self) -> Conditions:
        config, selection = self._config, self._config.stash[SELECTION]
        return Conditions(
            options=tuple(f"{name}={value}" for name, value in options_given(config, REPEATED)),
            models=selection.model_names,
            device=selection.device,
            dtype=selection.dtype,
            profile=config.getoption("--hypothesis-profile") or "default",
        )

    def _selection(self) -> str:
        """Returns in words how many of all tests were run; an empty text if all were."""
        tests = {each.test for each in self._entries if each.record is not None}
        num_left_out = self._deselection.num_without(tests)
        if self._deselection.is_uncounted:
            return f"{counted(len(tests), 'test')}, a selection"
        return f"{len(tests)} of {counted(len(tests) + num_left_out, 'test')}" if num_left_out else ""

    def _table(self, outcomes: list[Outcome], status: int, is_complete: bool) -> ConformanceTable:
        engines = tuple(dict.fromkeys(record.engine for _, record in outcomes))
        selection = self._config.stash[SELECTION]
        return ConformanceTable(
            made=self._made(),
            engines=engines,
            cells={engine: cells_of(engine, outcomes) for engine in engines},
            totals={engine: totals_of(engine, outcomes) for engine in engines},
            models=tuple(dict.fromkeys(record.model for _, record in outcomes)),
            device=selection.device,
            dtype=selection.dtype,
            precision=str(selection.precision) or "as the model",
            torch=version("torch"),
            promises={promise.id: promise.title for promise in Promise},
            notes=tuple(notes(outcomes)),
            exit_status=status,
            is_complete=is_complete,
        )

    def _empty_selection(self, terminalreporter: pytest.TerminalReporter) -> str | None:
        """Returns that -k, -m and the journal left no conformance test; pytest itself prints only what
        it deselected."""
        if self._config.option.collectonly:
            return None  # pytest says what it would run
        if terminalreporter.stats.get("error") or HEARD in self._config.stash:
            return None  # what could not be collected, or is wrong with the run, is printed
        if self._earlier and not self._entries:
            return f"no test was run: beside those that {self._outputs.journal} holds none is selected"
        option, num_run = self._config.option, len(self._entries)
        given = {"-k": option.keyword, "-m": option.markexpr}
        asked = " ".join(f"{name} {value!r}" for name, value in given.items() if value)
        if getattr(option, "benchmark_only", False) and num_run:
            return None
        deselected = terminalreporter.stats.get("deselected", ())
        if asked and (not num_run or any("trial" in item.fixturenames for item in deselected)):
            kind = "benchmark" if getattr(option, "benchmark_only", False) else "conformance test"
            return f"no {kind} was selected by {asked}: this run proves nothing"
        return None

    def _files(self, has_table: bool) -> list[str]:
        """Returns a line for each file that was asked for."""
        asked, lines = self._outputs, []
        if asked.table is not None:
            written = f"table: {asked.table}"
            lines += [written if has_table else f"{asked.table}: not written, for there is no table"]
        if asked.artifacts is not None:
            lines += [f"artifacts: {asked.artifacts}"]
        if asked.verdict is not None and self._verdict is None:
            lines += [f"{asked.verdict}: not written"]
        elif asked.verdict is not None and self._config.get_verbosity() >= 0:  # -q: for a program
            lines += [f"verdict: {asked.verdict}"]
        return lines


def entry_of(reports: Sequence[pytest.TestReport]) -> JournalEntry:
    """Returns the entry of a test that has ended: its last report that did not pass decides."""
    records = [record for record in map(record_of, reports) if record is not None]
    record = records[-1] if records else None
    outcome, text, reason = "passed", "", ""
    for report in reports:
        if not report.passed:
            outcome = "known" if hasattr(report, "wasxfail") else report.outcome
            reason = str(report.wasxfail) if outcome == "known" else ""
            text = _text(report)
    seconds = round(sum(each.duration for each in reports), 3)
    return JournalEntry(reports[0].nodeid, outcome, seconds, record, text, reason)


def _text(report: pytest.TestReport) -> str:
    longrepr: object = report.longrepr
    if isinstance(longrepr, tuple):  # of a skip: file, line, reason
        return str(longrepr[2]).removeprefix("Skipped: ")
    return str(longrepr)


def register(config: pytest.Config, outputs: Outputs) -> None:
    """Registers what selects tests, in all processes, and the recorder where all are heard of. Raises
    `UsageError` if the journal is none."""
    worker = getattr(config, "workerinput", None)
    try:
        if worker is None and outputs.journal is not None:
            finished: Sequence[str] = [each.test for each in entries(outputs.journal)]
        else:
            finished = [] if worker is None else worker.get(FINISHED, ())
        deselection = Deselection(config, finished)
        config.pluginmanager.register(deselection, "batchproof-deselection")
        if worker is None:
            recorder = Recorder(config, outputs, deselection)
            config.pluginmanager.register(recorder, "batchproof-recorder")
    except UsageError as error:
        raise UsageError(f"--journal: {error}") from None
