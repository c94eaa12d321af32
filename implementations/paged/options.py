"""What can be switched, so that its worth can be measured and a fault in it be bisected."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.errors import ConfigError
from implementations.paged.kernels import triton_works

BACKENDS = ("lanes", "blocks", "triton")


@dataclass(frozen=True, slots=True)
class PagedOptions:
    """`--engine 'paged?backend=blocks&graphs=true'`. What is None or auto is chosen by the device."""

    backend: str = "auto"  # lanes on a CPU; on CUDA triton where it is installed, else blocks
    trace: bool | None = None  # the forward pass as TorchScript; on a CPU
    graphs: bool | None = None  # decode steps as CUDA graphs; elsewhere the same without recording
    overlap: bool | None = None  # tokens are read one step late; on CUDA
    compile: bool | str = False  # by torch.compile, with the backend named, else inductor
    prepack: bool = False  # linear layers with transposed weights; needs trace
    poison: float | None = None  # what unused and freed blocks hold: nobody may read them

    def resolved(self, device: torch.device) -> PagedOptions:
        """Without None and auto. Raises `ConfigError` naming value, rule and choices."""
        is_cuda = device.type == "cuda"
        by_device = ("triton" if triton_works() else "blocks") if is_cuda else "lanes"
        backend = by_device if self.backend == "auto" else self.backend
        if backend not in BACKENDS:
            raise ConfigError(f"backend {backend!r} is none of auto, {', '.join(BACKENDS)}")
        chosen = PagedOptions(
            backend=backend,
            trace=not (is_cuda or self.compile) if self.trace is None else self.trace,
            graphs=is_cuda if self.graphs is None else self.graphs,
            overlap=is_cuda if self.overlap is None else self.overlap,
            compile=self.compile,
            prepack=self.prepack,
            poison=self.poison,
        )
        for is_wrong, why in chosen._contradictions(is_cuda):
            if is_wrong:
                raise ConfigError(f"engine 'paged' on {device.type}: {why}")
        return chosen

    def _contradictions(self, is_cuda: bool) -> tuple[tuple[bool, str], ...]:
        return (
            (is_cuda and self.backend == "lanes", "backend=lanes is for a CPU"),
            (self.backend == "triton" and not triton_works(), "backend=triton needs Triton and CUDA"),
            (is_cuda and bool(self.trace), "trace=true is for a CPU"),
            (bool(self.trace and self.compile), "trace and compile exclude each other"),
            (self.prepack and not self.trace, "prepack=true needs trace=true"),
            (
                bool(self.graphs) and self.backend == "lanes",
                "graphs=true needs backend=blocks or triton",
            ),
        )
