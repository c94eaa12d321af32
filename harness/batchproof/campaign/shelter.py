"""A laboratory for many hunts, and a process that outlives what lying engines do to it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from batchproof.checks.environment import shared_of
from batchproof.checks.switches import compute_exactly, positions, set_back
from batchproof.run.laboratory import Laboratory


@dataclass
class SharedLaboratory(Laboratory):
    """Models and right answers, kept from hunt to hunt unless an engine has damaged a model."""

    is_watched: bool = True

    @property
    def arguments(self) -> list[str]:
        """pytest's, so that a session asks for what this laboratory has."""
        dtype = str(self.dtype).removeprefix("torch.")
        return [
            f"--device={self.device}",
            f"--dtype={dtype}",
            f"--engine-time-limit={self.time_limit_s}",
        ]

    @contextmanager
    def session(self) -> Iterator[None]:
        """Around a hunt. What is known of engines is forgotten, so that no hunt depends on another.

        The hunt computes exactly, so its models are looked after in the same setting."""
        compute_exactly()
        self._capabilities.clear()
        self._is_bitwise.clear()
        try:
            yield
        finally:
            for name, subject in list(self._subjects.items()):
                if shared_of(subject.model) != self.as_loaded(name):
                    self._drop(name)

    def _drop(self, model_name: str) -> None:
        """The model, and every answer that may have come from it when it was damaged."""
        for known in (self._subjects, self._oracles, self._adequacy, self._worlds):
            known.pop(model_name, None)


@contextmanager
def torch_restored() -> Iterator[None]:
    """An engine, or a test session, may leave torch's switches and random numbers changed."""
    switches = positions()
    rng, python_rng = torch.get_rng_state(), random.getstate()
    try:
        yield
    finally:
        set_back(switches)
        torch.set_rng_state(rng)
        random.setstate(python_rng)
