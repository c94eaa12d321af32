"""Where the tasks of a campaign are run: in processes of this machine, or of a Ray cluster."""

from __future__ import annotations

from batchproof.campaign.worker_pool import WorkerPool

PROCESSES, RAY = "processes", "ray"


def runner(name: str, num_workers: int, time_limit_s: float) -> WorkerPool:
    """Returns the pool of this name. Raises `UsageError` if Ray is asked for and not installed."""
    if name == RAY:
        from batchproof.campaign.ray_pool import RayPool  # noqa: PLC0415 - an extra

        return RayPool(num_workers, time_limit_s)
    return WorkerPool(num_workers, time_limit_s)
