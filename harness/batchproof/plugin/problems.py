"""What is wrong with a run and is found out only where the tests are: by a worker, if there are some.

It ends the run in one sentence, as wrong arguments do.
"""

from __future__ import annotations

import pytest

from batchproof.plugin.configuring import located

NAME = "batchproof_problem"


def report(config: pytest.Config, problem: str) -> None:
    """Raises `pytest.UsageError`, with the place if the value is that of a configuration file; a worker
    of xdist passes the problem to the controller instead, and runs no test."""
    if not hasattr(config, "workeroutput"):
        raise pytest.UsageError(located(config, problem))
    config.workeroutput[NAME] = problem


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> object:
    """Collects nothing in a worker that has found a problem."""
    if NAME not in getattr(session.config, "workeroutput", {}):
        return None
    session.items = []
    session.config.hook.pytest_collection_finish(session=session)
    return True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drops the tests among which a worker has found a problem."""
    if NAME in getattr(config, "workeroutput", {}):
        items.clear()


class Problems:
    """The plugin of a controller that hears of the problems of its workers."""

    def __init__(self) -> None:
        self._problem: str | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Takes over what a worker that has ended reports."""
        self._problem = getattr(node, "workeroutput", {}).get(NAME) or self._problem

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails the session if there is a problem."""
        if self._problem:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the problem."""
        if self._problem:
            problem = located(terminalreporter.config, self._problem)
            terminalreporter.write_line(f"ERROR: {problem}", red=True)
