"""Where the tasks of a campaign are run: in processes of this machine, or by Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from batchproof.campaign.worker_pool import LostTask, WorkerPool

PROCESSES, RAY = "processes", "ray"


class Runner(AbstractContextManager[Any], Protocol):
    """Runs tasks. `WorkerPool` says what that means."""

    def run(
        self, function: Callable[[Any], Any], tasks: Iterable[Any]
    ) -> Iterator[tuple[Any, Any | LostTask]]:
        """Yields each task with its result, in the order in which they are done."""
        ...


def runner(name: str, num_workers: int, time_limit_s: float) -> Runner:
    """Returns the runner of this name, which runs as many tasks at once, each within the limit in
    seconds. Raises `UsageError` if Ray is asked for and not installed.
    """
    if name == RAY:
        from batchproof.campaign.ray_pool import RayPool  # noqa: PLC0415 - an extra

        return RayPool(num_workers, time_limit_s)
    return WorkerPool(num_workers, time_limit_s)
