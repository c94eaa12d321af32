"""`--isolate`: tests run in a worker of xdist, so that an engine that ends its process, or never
returns, costs its own test alone.

The worker writes notes of what it does (`batchproof.run.call_notes`). Once it is gone, its last note
becomes the report of its test (`batchproof.plugin.process_death`), and another worker goes on. An
engine that takes its worker along at first contact is not tried again.
"""

from __future__ import annotations

import os
from argparse import BooleanOptionalAction
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from batchproof.cli.interrupts import interruptible
from batchproof.errors import EngineHang
from batchproof.plugin.process_death import Ending, complete_report, ending
from batchproof.plugin.scoring import ASKED, forgive
from batchproof.run.call_notes import CallNote, CallNotes, keeping, read_note
from batchproof.run.engine_names import BY_DEFAULT, FAULT_PREFIX, ODD_PREFIX, has_own_process

if TYPE_CHECKING:
    from batchproof.run.laboratory import Laboratory
OPTION = "--isolate"
HELP = (
    "run the tests in a process that is replaced if an engine ends it or never returns (default: if "
    "several engines are tested, one of which is not built in); with -n, workers are such processes; "
    "in a benchmark, each engine gets a process of its own"
)
NOTES, LOST = "batchproof_notes", "batchproof_lost"  # in a worker's input
MOST_STARTS = 3  # of workers that die before they have met an engine
MANY = 1_000_000  # workers may be lost: each costs its own test


def add_option(group: pytest.OptionGroup) -> None:
    """Adds `--isolate` and `--no-isolate` to pytest's parser."""
    group.addoption(OPTION, action=BooleanOptionalAction, default=None, help=HELP)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Asks xdist for one worker if the run is isolated, before xdist reads its options.

    With -n, workers steal from each other unless they are told how to share the tests out: each begins
    with tests in a row, which need the same right answers and fixtures.
    """
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
    if get("--benchmark-only", default=False):
        return False  # it is the engines that get processes, and one process takes their times
    obstacle = (
        "xdist is switched off" if not config.pluginmanager.has_plugin("xdist") else
        "--pdb needs one process" if get("usepdb") else None
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
        if config.getoption("collectonly"):  # nothing is lost with it
            own.dump = os.fdopen(os.dup(2), "wb", buffering=0)
        stack.enter_context(keeping(own))


def share_lost_engines(config: pytest.Config, lab: Laboratory) -> None:
    """Gives the laboratory of a worker the engines that were lost at first contact."""
    worker = getattr(config, "workerinput", None)
    lost: dict[str, Any] = worker[LOST] if worker else {}
    lab.lost.update({engine: EngineHang(what, frames) for engine, (what, *frames) in lost.items()})


class Controller:
    """The plugin of the process whose workers may be lost."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lost: dict[str, list[str]] = {}
        self._num_vain = 0  # workers that died before they met an engine
        self._ended: dict[str, tuple[CallNote, Ending]] = {}  # id of a worker -> how it died

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
                self._lost[note.engine] = [how.what, *how.frames]

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, report: pytest.TestReport) -> None:
        """Turns the last note of the worker into the report of the test it was lost in."""
        node = getattr(report, "node")  # noqa: B009 - xdist puts it there
        if node.gateway.id not in self._ended:
            return
        record = complete_report(report, *self._ended[node.gateway.id])
        if record is not None:
            forgive(report, record, node.config.stash.get(ASKED, None))
