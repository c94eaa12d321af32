"""What is wrong with a run and is found out only where the tests are: by a worker, if there are some.

It ends the run in one sentence, as wrong arguments do.
"""

from typing import Any

import pytest

NAME = "batchproof_problem"  # in a worker's output
HEARD = pytest.StashKey[str]()  # by a controller, of a worker


def report(config: pytest.Config, problem: str) -> None:
    """Raises `pytest.UsageError`; a worker of xdist passes the problem to the controller instead, and
    runs no test."""
    if not hasattr(config, "workeroutput"):
        raise pytest.UsageError(problem)
    config.workeroutput[NAME] = problem


class Problems:
    """The plugin of a worker that has found a problem, and of the controller that hears of it."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> object:
        """Collects nothing in a worker that has found a problem."""
        if NAME not in getattr(session.config, "workeroutput", {}):
            return None
        session.items = []
        session.config.hook.pytest_collection_finish(session=session)
        return True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Drops the tests among which a worker has found a problem."""
        if NAME in getattr(config, "workeroutput", {}):
            items.clear()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if problem := getattr(node, "workeroutput", {}).get(NAME):
            node.config.stash[HEARD] = problem

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        stash = terminalreporter.config.stash
        if HEARD in stash:
            terminalreporter.write_line(f"ERROR: {stash[HEARD]}", red=True)
