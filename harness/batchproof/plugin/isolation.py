"""`--isolate`: tests run in a worker of xdist, so that an engine that ends its process, or never
returns, costs its own test alone.

The worker writes notes of what it does (`batchproof.run.call_notes`). Once it is gone, its last note
becomes the report of its test, with its stacks and its exit status, and another worker goes on. An
engine that takes its worker along at first contact is not tried again.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from subprocess import TimeoutExpired
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from batchproof.cli.interrupts import interruptible
from batchproof.errors import EngineHang
from batchproof.findings.finding import Failure, Finding, Rule, Run, Scene, found
from batchproof.findings.finding_text import failure_text
from batchproof.places import PACKAGE
from batchproof.plugin.failure_record import FIRST_CONTACT, record_failure
from batchproof.plugin.items import attach_record
from batchproof.records.trial_record import Ledger, TrialRecord
from batchproof.run.call_notes import CallNote, CallNotes, keeping, read_note
from batchproof.run.engine_names import BY_DEFAULT, FAULT_PREFIX, ODD_PREFIX, has_own_process
from batchproof.run.failures import Frame, innermost

if TYPE_CHECKING:
    from batchproof.run.laboratory import Laboratory

OPTION = "--isolate"
HELP = (
    "run the tests in a process that is replaced if an engine ends it or never returns (default: if "
    "several engines are tested, one of which is not built in); with -n, workers are such processes"
)
ONE_PROCESS = "one process takes the times of a benchmark"
NOTES, LOST = "batchproof_notes", "batchproof_lost"  # in a worker's input
MOST_STARTS = 3  # of workers that die before they have met an engine
MANY = 1_000_000  # workers may be lost: each costs its own test


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Asks xdist for one worker if the run is isolated, before xdist reads its options.

    With -n, workers steal from each other unless they are told how to share the tests out: each begins
    with tests in a row, which need the same right answers and fixtures.
    """
    if config.getoption("numprocesses", None) and config.getoption("--benchmark-only", default=False):
        raise pytest.UsageError(f"-n cannot be had: {ONE_PROCESS}")
    if _is_isolated(config):
        config.option.numprocesses = 1
    elif config.getoption("numprocesses", None) and config.getoption("dist") == "no":
        config.option.dist = "worksteal"
    if config.getoption("numprocesses", None) and config.getoption("maxworkerrestart") is None:
        config.option.maxworkerrestart = str(MANY)


def _is_isolated(config: pytest.Config) -> bool:
    """Returns whether a worker is to be added. Raises `pytest.UsageError` if it cannot be."""
    get = config.getoption
    asked, engines = get(OPTION), get("--engine") or ()
    if asked is False or hasattr(config, "workerinput") or get("collectonly"):
        return False
    obstacle = (
        "xdist is switched off" if not config.pluginmanager.has_plugin("xdist") else
        "--pdb needs one process" if get("usepdb") else
        ONE_PROCESS if get("--benchmark-only", default=False) else
        None
    )  # fmt: skip
    if asked and obstacle:
        raise pytest.UsageError(f"{OPTION} cannot be had: {obstacle}")
    is_chosen = bool(asked) or (
        len(engines) > 1 and any(map(_is_foreign, engines)) and get("capture") != "no"
    )
    return is_chosen and obstacle is None and get("numprocesses") is None


def _is_foreign(engine: str) -> bool:
    """Returns whether it is code of others that works in the process of the tests."""
    name = engine.partition("?")[0]
    is_ours = name in BY_DEFAULT or engine.startswith((FAULT_PREFIX, ODD_PREFIX))
    return not (is_ours or has_own_process(engine))


def has_workers(config: pytest.Config) -> bool:
    """Returns whether other processes run the tests: then this one must not touch the engines."""
    is_controller = not (hasattr(config, "workerinput") or config.getoption("collectonly"))
    return is_controller and config.getoption("dist", "no") != "no" and bool(config.getoption("tx"))


def begin(config: pytest.Config) -> None:
    """Installs signal handlers and the notes of calls."""
    stack = ExitStack()
    config.add_cleanup(stack.close)
    stack.enter_context(interruptible())
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        stack.enter_context(keeping(CallNotes(Path(worker[NOTES]))))
    elif has_workers(config):
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="batchproof-")))
        config.pluginmanager.register(Controller(folder), "batchproof-controller")
    else:
        own = CallNotes()
        own.uncapture = config.pluginmanager.getplugin("capturemanager").suspend_global_capture
        if config.getoption("collectonly"):  # nothing is lost with it
            own.dump = os.fdopen(os.dup(2), "wb", buffering=0)
        stack.enter_context(keeping(own))


def share_lost_engines(config: pytest.Config, lab: Laboratory) -> None:
    """Gives the laboratory of a worker the engines that were lost at first contact."""
    worker = getattr(config, "workerinput", None)
    lost: dict[str, Any] = worker[LOST] if worker else {}
    lab.lost.update({engine: EngineHang(*how) for engine, how in lost.items()})


class Controller:
    """The plugin of the process whose workers may be lost."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lost: dict[str, tuple[object, object]] = {}  # engine -> what happened, frames
        self._num_vain = 0  # workers that died before they met an engine
        self._ended: dict[str, tuple[CallNote, Finding]] = {}  # id of a worker -> how it died

    def _path(self, node: Any) -> Path:
        return self._folder / f"{node.gateway.id}.note"

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tells a worker where to write its notes, and which engines to leave alone."""
        node.workerinput[NOTES], node.workerinput[LOST] = str(self._path(node)), self._lost

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Notes the engine at whose first contact a worker died. Raises `pytest.UsageError` if workers
        die again and again before they meet one."""
        path = self._path(node)
        note = read_note(path)
        path.unlink(missing_ok=True)  # no call is waited for
        if error is None:
            return
        self._num_vain += note is None or not note.engine
        if self._num_vain > MOST_STARTS:
            raise pytest.UsageError(f"workers die before they begin: {error}")
        if note is not None:
            how = ending(path.with_suffix(".dump"), note, node)
            self._ended[node.gateway.id] = (note, how)
            if note.first_contact:
                self._lost[note.engine] = how.facts["what"], how.facts["evidence"]

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, report: pytest.TestReport) -> None:
        """Turns the last note of the worker into the report of the test it was lost in."""
        node = getattr(report, "node")  # noqa: B009 - xdist puts it there
        if node.gateway.id in self._ended:
            complete_report(report, *self._ended[node.gateway.id])


FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
MOST_FRAMES = 5


def ending(path: Path, note: CallNote, node: Any) -> Finding:
    """Returns how the worker ended whose stacks are in the file."""
    dump = path.read_text(errors="replace")
    inner = _frames(dump)
    if dump.startswith("Timeout ("):
        rule = Rule.HANG
        what = (
            f"{note.call} did not return within {note.limit_s:g} s, nor when it was interrupted; its "
            f"process was ended"
        )
    else:
        rule = Rule.DIED
        what = f"the process {_status(node)} {'in' if note.is_open else 'after'} {note.call}"
    shown = [f"{file}:{line} in {name}" for file, line, name in inner[:MOST_FRAMES]]
    return found(rule, what=what, evidence=tuple(shown[::-1]), at=innermost(inner[::-1]))


def _status(node: Any) -> str:
    status = None
    with suppress(AttributeError, TimeoutExpired):  # a worker on another machine has no process here
        status = node.gateway._io.popen.wait(timeout=5)
    if status is None:
        return "ended"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _frames(dump: str) -> tuple[Frame, ...]:
    """Returns the engine's frames, innermost first, of the thread that failed or, if all hang, of the
    main one, which faulthandler lists last."""
    failed = dump.rpartition("Current thread")[2]
    stacks = re.split(r"^Thread .*$", failed, flags=re.MULTILINE)
    found = FRAME.findall(stacks[0 if "Current thread" in dump else -1])
    frames = ((file, int(line), name) for file, line, name in found)
    return tuple(takewhile(lambda frame: not frame[0].startswith(str(PACKAGE)), frames))


def complete_report(report: pytest.TestReport, note: CallNote, how: Finding) -> TrialRecord | None:
    """Makes the report of a lost test that of a broken promise and returns the record that it carries;
    None if it was no conformance test. A failure whose cause was being sought keeps its own report."""
    record, subject = note.record, note.subject
    if record is None or subject is None:
        return None
    if note.report:
        text = f"{note.report}\nits cause was being sought when this happened: {how.facts['what']}"
    else:
        failure = Failure(how, Scene((Run(0, note.workload or FIRST_CONTACT),)), subject)
        said = Ledger(release=subject.release, precision=subject.precision)
        record = replace(record, failure=record_failure(failure), ledger=said)
        text = failure_text(failure)
    report.longrepr = f"{text}\n{note.again}"
    attach_record(report, record)
    if note.known is not None:
        report.outcome, report.wasxfail = "skipped", note.known
    return record
