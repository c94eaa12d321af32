"""Worker processes for tasks that may crash or hang, which loses the task and not the run.

Workers persist, so torch is imported and models are made once in each. They are spawned, not forked:
a fork of a process that has used torch may hang.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from typing import Self, TypeVar

from pebble import ProcessExpired, ProcessPool

Task = TypeVar("Task")
Result = TypeVar("Result")


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
        """Sets the number of processes, and the limit in seconds for one task."""
        self._num_workers = num_workers
        self._time_limit_s = time_limit_s
        self._processes = ProcessPool(num_workers, context=get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._processes.stop()
        self._processes.join()

    def run(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[Task, Result | LostTask]]:
        """Yields each task with its result, in the order in which they are done.

        Function, tasks and results are pickled. A task is taken when a worker is free for it, so a
        generator of tasks can depend on the results so far. A lost worker is replaced. Leaving the
        iteration early ends the workers that are busy.
        """
        waiting, limit_s = iter(tasks), self._time_limit_s
        busy: dict[Future[Result], Task] = {}
        try:
            while True:
                for task in islice(waiting, self._num_workers - len(busy)):
                    future = self._processes.schedule(function, (task,), timeout=limit_s)
                    busy[future] = task
                if not busy:
                    return
                done: set[Future[Result]] = wait(busy, return_when=FIRST_COMPLETED).done
                for each in done:
                    result = self._result(each)
                    yield busy.pop(each), result
        finally:
            for each in busy:
                each.cancel()

    def _result(self, future: Future[Result]) -> Result | LostTask:
        try:
            return future.result()
        except TimeoutError:
            return LostTask(f"no result within {self._time_limit_s:g} s")
        except ProcessExpired as error:
            return LostTask(f"the process died with exit code {error.exitcode}")
        except Exception as error:
            return LostTask(f"it raised {type(error).__name__}: {error}")
