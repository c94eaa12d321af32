"""Where the processes of a command run: on this machine, or on those of a Ray cluster."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from batchproof.errors import UsageError

PROCESSES, RAY = RUNNERS = ("processes", "ray")


def add_runner(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Adds `--runner`."""
    parser.add_argument("--runner", choices=RUNNERS, default=PROCESSES, help=meaning)


def ray_module() -> Any:
    """Returns Ray, which is an extra. Raises `UsageError` without it."""
    try:
        import ray  # noqa: PLC0415 - only where it is asked for
    except ImportError as error:
        raise UsageError("--runner ray needs Ray: `pip install 'batchproof[ray]'`") from error
    return ray


@contextmanager
def cluster(num_cpus: int) -> Iterator[Any]:
    """Yields Ray, connected to the cluster that `RAY_ADDRESS` names, else to one of this machine alone
    with so many cores."""
    ray = ray_module()
    if address := os.environ.get("RAY_ADDRESS"):
        ray.init(address, log_to_driver=False)
    else:
        ray.init("local", num_cpus=num_cpus, include_dashboard=False, log_to_driver=False)
    try:
        yield ray
    finally:
        ray.shutdown()
