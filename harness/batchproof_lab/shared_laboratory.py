"""A laboratory that many suite runs share, and a process that stays usable whatever an engine does to
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Self

import torch

from batchproof.checks.switches import compute_exactly
from batchproof.models.catalogue import resolve_dtype
from batchproof.run.laboratory import Laboratory


@dataclass
class SharedLaboratory(Laboratory):
    """Keeps models and right answers from run to run, unless an engine has damaged a model."""

    @classmethod
    def beside(cls, lab: Laboratory, time_limit_s: float) -> Self:
        """Returns one that shares models and right answers with the laboratory of this process."""
        return cls(
            lab.device,
            lab.dtype,
            time_limit_s,
            lab.precision,
            watch=lab.watch.beside(),
            _subjects=lab._subjects,
            _oracles=lab._oracles,
            _adequacy=lab._adequacy,
        )

    @property
    def arguments(self) -> list[str]:
        dtype = str(self.dtype).removeprefix("torch.")
        return [
            f"--device={self.device}",
            f"--dtype={dtype}",
            f"--engine-time-limit={self.time_limit_s}",
        ]

    @contextmanager
    def session(self) -> Iterator[None]:
        """Surrounds a suite run. What is known of engines is forgotten, so that no run depends on an
        earlier one, and models that were damaged are dropped.

        The run computes exactly, so its models are compared in the same setting.
        """
        compute_exactly()
        self._offers.clear()
        self.lost.clear()
        self._is_bitwise.clear()
        self.watch.forget_engines()
        try:
            yield
        finally:
            for name, subject in list(self._subjects.items()):
                if self.watch.is_damaged(subject):
                    self.drop(name)


@cache
def process_laboratory(dtype_name: str, time_limit_s: float) -> SharedLaboratory:
    """Returns the one laboratory of a worker process. Workers share the cores, so each uses one
    thread."""
    torch.set_num_threads(1)
    return SharedLaboratory(torch.device("cpu"), resolve_dtype(dtype_name), time_limit_s)
