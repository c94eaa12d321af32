"""The worker pool: every task has one result, and a task that crashes or hangs is lost alone."""

import operator
import os
import time
from collections.abc import Iterator

from batchproof_lab.worker_pool import LostTask, WorkerPool


def test_workers_stay_from_run_to_run_and_tasks_may_depend_on_results() -> None:
    num_done = 0

    def tasks() -> Iterator[int]:
        while num_done < 3:
            yield num_done

    with WorkerPool(1, time_limit_s=60.0) as pool:
        assert sorted(pool.run(operator.neg, range(5))) == [(each, -each) for each in range(5)]
        ((_, first),) = pool.run(_process_id, [0])
        ((_, second),) = pool.run(_process_id, [0])
        assert first == second
        for _ in pool.run(operator.neg, tasks()):
            num_done += 1
    assert num_done == 3


def test_an_abandoned_run_ends_at_once_and_leaves_the_pool_usable() -> None:
    with WorkerPool(2, time_limit_s=60.0) as pool:
        run = pool.run(time.sleep, [0.0, 50.0])
        assert next(run) == (0.0, None)
        run.close()  # type: ignore[attr-defined]
        assert list(pool.run(operator.neg, [1])) == [(1, -1)]


def test_a_task_that_crashes_hangs_or_raises_is_lost_alone() -> None:
    with WorkerPool(1, time_limit_s=60.0) as pool:
        crashed = dict(pool.run(os._exit, [3, 4]))
        assert crashed == {code: LostTask(f"the process died with exit code {code}") for code in (3, 4)}
        ((_, lost),) = pool.run(operator.index, ["one"])
        assert lost == LostTask("it raised TypeError: 'str' object cannot be interpreted as an integer")
        ((_, unsendable),) = pool.run(_generator, [1])
        assert isinstance(unsendable, LostTask)
    with WorkerPool(2, time_limit_s=3.0) as pool:
        slept = dict(pool.run(time.sleep, [0.0, 60.0]))
        assert slept == {0.0: None, 60.0: LostTask("no result within 3 s")}


def _process_id(_: int) -> int:
    return os.getpid()


def _generator(_: int) -> object:
    return (each for each in ())
