"""A laboratory for many hunts, and a process that outlives what lying engines do to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from harness.trial import Laboratory
from harness.world import shared_of


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
        """Around a hunt. What is known of engines is forgotten, so that no hunt depends on another."""
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


# What `torch_restored` looks after: how to read it, and how to set it back.
SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, torch.set_default_device),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
)


@contextmanager
def torch_restored() -> Iterator[None]:
    """An engine, or a test session, may leave torch's switches and random numbers changed."""
    switches = [read() for read, _ in SWITCHES]
    rng, python_rng = torch.get_rng_state(), random.getstate()
    try:
        yield
    finally:
        for (read, write), value in zip(SWITCHES, switches, strict=True):
            if read() != value:
                write(value)
        torch.set_rng_state(rng)
        random.setstate(python_rng)
