"""Worker processes that stay: torch is imported and models are made once in each."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import active_children, get_context
from types import TracebackType
from typing import Self, TypeVar

from batchproof.errors import BatchproofError

Task = TypeVar("Task")
Result = TypeVar("Result")


class Crew:
    """`with Crew(4) as crew: for task, result in crew.work(function, tasks): ...`

    Spawned, not forked: a fork of a process that has used torch may hang.
    """

    def __init__(self, jobs: int) -> None:
        self._num_ahead = 2 * jobs  # tasks handed over: enough that nobody waits for the next
        self._executor = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_prepare)
        self._others = set(active_children())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nobody waits for work that is no longer wanted."""
        self._executor.shutdown(wait=kind is None, cancel_futures=True)
        for worker in set(active_children()) - self._others:
            worker.terminate()

    def work(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[Task, Result]]:
        """Each task with its result, as they come. Tasks are taken when they are needed, so a generator
        may decide by the results so far how many there are."""
        waiting = iter(tasks)
        pending: dict[Future[Result], Task] = {}
        while True:
            for task in islice(waiting, self._num_ahead - len(pending)):
                pending[self._executor.submit(function, task)] = task
            if not pending:
                return
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                task = pending.pop(future)
                yield task, _result(future, task)


def _result(future: Future[Result], task: object) -> Result:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise BatchproofError(f"a worker process died, perhaps at {task}") from error


def _prepare() -> None:
    """Ctrl-C reaches all processes of a terminal; the one that asked ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
