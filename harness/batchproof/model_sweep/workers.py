"""Work in processes that may crash or hang without ending it: what is lost is the task they had.

`batchproof.campaign.crew` is for tasks that come back; here the task itself is under suspicion.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_SPAWN = get_context("spawn")  # a fork of a process that has used torch may hang


@dataclass(frozen=True, slots=True)
class Lost:
    """In place of a result: what became of the process."""

    why: str


def work(
    function: Callable[[Task], Result], tasks: Iterable[Task], jobs: int, time_limit_s: float
) -> Iterator[tuple[Task, Result | Lost]]:
    """Each task with its result, as they come; none of them is None. The limit is for one task, the
    start of a process included. The processes end with the iterator."""
    waiting = deque(tasks)
    workers = [_Worker(function, time_limit_s) for _ in range(min(jobs, len(waiting)))]
    try:
        while True:
            for worker in workers:
                if worker.task is None and waiting:
                    worker.begin(waiting.popleft())
            busy = [worker for worker in workers if worker.task is not None]
            if not busy:
                return
            first = min(worker.deadline for worker in busy)
            wait([worker.connection for worker in busy], max(0.0, first - time.monotonic()))
            for worker in busy:
                result = worker.result()
                if result is None:
                    continue
                task, worker.task = worker.task, None
                if isinstance(result, Lost):
                    worker.end()
                    workers[workers.index(worker)] = _Worker(function, time_limit_s)
                yield task, result
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """One process, and what it is at."""

    def __init__(self, function: Callable[[Any], Any], time_limit_s: float) -> None:
        self.connection, other = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(function, other), daemon=True)
        self._process.start()
        other.close()
        self._time_limit_s = time_limit_s
        self.task: Any = None
        self.deadline = 0.0

    def begin(self, task: Any) -> None:
        self.task = task
        self.deadline = time.monotonic() + self._time_limit_s
        with suppress(OSError):  # it has died meanwhile: `result` will say so
            self.connection.send(task)

    def result(self) -> Any:
        """None while it is at work."""
        try:
            if self.connection.poll():
                return self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            return Lost(f"the process died with exit code {self._process.exitcode}")
        if time.monotonic() >= self.deadline:
            return Lost(f"no result within {self._time_limit_s:g} s")
        return None

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(function: Callable[[Any], Any], connection: Connection) -> None:
    """Ctrl-C reaches all processes of a terminal; the one that asked ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, BrokenPipeError):  # nobody is there to ask any more
        while True:
            task = connection.recv()
            try:
                result = function(task)
            except Exception as error:
                result = Lost(f"it raised {type(error).__name__}: {error}")
            connection.send(result)
