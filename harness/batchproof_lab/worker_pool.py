"""Worker processes for tasks that may crash or hang, which loses the task and not the run.

Workers persist, so torch is imported and models are made once in each. They are spawned, not forked:
a fork of a process that has used torch may hang.
"""

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Self, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_SPAWN = get_context("spawn")


@dataclass(frozen=True, slots=True)
class LostTask:
    """Takes the place of a result: the task raised, hung, or ended its process."""

    why: str


class WorkerPool:
    """Runs tasks in `num_workers` processes that live as long as the `with` block:

    with WorkerPool(4, time_limit_s=60.0) as pool:
        for task, result in pool.run(function, tasks): ...
    """

    def __init__(self, num_workers: int, time_limit_s: float) -> None:
        """Sets the number of processes, and the limit in seconds for one task, which includes the
        start of its process.
        """
        self._num_workers = num_workers
        self._time_limit_s = time_limit_s
        self._idle: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the processes; those in the middle of a task are ended by `run`."""
        while self._idle:
            self._idle.pop().kill()

    def run(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[Task, Result | LostTask]]:
        """Yields each task with its result, in the order in which they are done.

        Function, tasks and results are pickled. A task is taken when a worker is free for it, so a
        generator of tasks can depend on the results so far. A lost worker is replaced. Leaving the
        iteration early ends the workers that are busy.
        """
        waiting = iter(tasks)
        busy: dict[_Worker, Task] = {}
        try:
            while True:
                for task in islice(waiting, self._num_workers - len(busy)):
                    worker = self._idle.pop() if self._idle else _Worker(self._time_limit_s)
                    busy[worker] = task
                    worker.begin(function, task)
                if not busy:
                    return
                for worker in _done_first(busy):
                    task, result = busy.pop(worker), worker.result()
                    if worker.is_usable:
                        self._idle.append(worker)
                    yield task, result
        finally:
            for worker in busy:
                worker.kill()


class _Worker:
    """One process and the deadline of the task it was given."""

    def __init__(self, time_limit_s: float) -> None:
        self.connection, other = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()
        self._time_limit_s = time_limit_s
        self.is_usable = True

    def begin(self, function: Callable[[Any], Any], task: Any) -> None:
        self.deadline = time.monotonic() + self._time_limit_s
        with suppress(OSError):  # the process has died meanwhile: `result` will report it
            self.connection.send((function, task))

    def result(self) -> Any:
        """Returns what the process sent, or a `LostTask` if it has died or its time is up."""
        try:
            if self.connection.poll():
                return self.connection.recv()
            why = f"no result within {self._time_limit_s:g} s"
        except (EOFError, OSError):
            self._process.join()
            why = f"the process died with exit code {self._process.exitcode}"
        self.kill()
        return LostTask(why)

    def kill(self) -> None:
        self.is_usable = False
        self._process.kill()
        self._process.join()
        self.connection.close()


def _done_first(busy: Iterable[_Worker]) -> list[_Worker]:
    """Waits for a worker that has sent a result, died or reached its deadline; returns all such."""
    workers = list(busy)
    left_s = min(worker.deadline for worker in workers) - time.monotonic()
    ready = wait([worker.connection for worker in workers], max(0.0, left_s))
    now = time.monotonic()
    return [worker for worker in workers if worker.connection in ready or worker.deadline <= now]


def _serve(connection: Connection) -> None:
    """Runs tasks until the other end of the pipe is closed. Ctrl-C reaches all processes of a terminal;
    the one that owns the pool ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, BrokenPipeError):
        while True:
            function, task = connection.recv()
            try:
                result = function(task)
            except Exception as error:
                result = LostTask(f"it raised {type(error).__name__}: {error}")
            connection.send(result)
