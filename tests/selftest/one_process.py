"""A stand-in for the pool of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


class OneProcess:
    """A pool without workers: importing torch once more takes longer than a small campaign."""

    def __init__(self, num_workers: int, time_limit_s: float) -> None:
        assert num_workers == 1
        assert time_limit_s > 0

    def __enter__(self) -> OneProcess:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        return ((task, function(task)) for task in tasks)
