"""Workers on the machines of a Ray cluster.

Ray only places them: each of its actors has a worker process of its own, with the same time limit and
the same words for a crash as on this machine.
"""

import pickle
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Self

from batchproof.cli.ray_cluster import cluster, ray_module
from batchproof_lab.worker_pool import LostTask, WorkerPool, called_pickled

ray = ray_module()


class RayPool(WorkerPool):
    """A `WorkerPool` in the cluster that `RAY_ADDRESS` names, else in one of this machine alone.

    All machines need the same code and packages; Ray gives each actor one core.
    """

    def __enter__(self) -> Self:
        self._cluster = ExitStack()
        self._cluster.enter_context(cluster(self._num_workers))
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._cluster.close()

    def _new_worker(self) -> "_RayWorker":
        return _RayWorker(ray.remote(num_cpus=1)(_Host).remote(self._time_limit_s))

    @staticmethod
    def _done_first(busy: Iterable[Any]) -> list[Any]:
        workers = {worker.result_ref: worker for worker in busy}
        done, _ = ray.wait(list(workers))
        return [workers[each] for each in done]


class _Host:
    """The actor: it never imports what its worker process imports."""

    def __init__(self, time_limit_s: float) -> None:
        self._pool = WorkerPool(1, time_limit_s)

    def run(self, call: bytes) -> bytes | LostTask:
        ((_, result),) = self._pool.run(called_pickled, [call])
        return result


class _RayWorker:
    """One actor, as the pool sees it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.is_usable = True

    def begin(self, function: Callable[[Any], Any], task: Any) -> None:
        self.result_ref = self._actor.run.remote(pickle.dumps((function, task)))

    def result(self) -> Any:
        try:
            found = ray.get(self.result_ref)
        except ray.exceptions.RayError as error:
            self.kill()
            return LostTask(f"Ray lost its worker: {type(error).__name__}", is_killed=True)
        return found if isinstance(found, LostTask) else pickle.loads(found)

    def kill(self) -> None:
        self.is_usable = False
        ray.kill(self._actor)
