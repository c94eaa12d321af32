"""What can be switched, so that its worth can be measured and a fault in it be bisected."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from batchproof.errors import ConfigError
from batchproof_engines.paged.kernels import triton_works

PLAIN_BACKENDS = ("eager", "aot_eager")  # compilers that change nothing, to find a culprit
BACKENDS = ("lanes", "blocks", "triton")


@dataclass(frozen=True, slots=True)
class PagedOptions:
    """`--engine 'paged?backend=blocks&graphs=true'`. What is None or auto is chosen by the device."""

    backend: str = "auto"  # lanes on a CPU; on CUDA triton where it is installed, else blocks
    trace: bool | None = None  # the forward pass as TorchScript; on a CPU
    graphs: bool | None = None  # decode steps as CUDA graphs; elsewhere the same without recording
    overlap: bool | None = None  # tokens are read one step late, an EOS too; on CUDA
    compile: bool | str | None = None  # one layer for all, by inductor or the backend named; on CUDA
    prepare: bool | None = None  # the pool is sized and steps are captured when it is built; on CUDA
    tune: bool = False  # how kernels go through keys is chosen by measurement then; needs triton
    prepack: bool = False  # linear layers with transposed weights; needs trace
    poison: float | None = None  # what unused and freed blocks hold: it has no effect

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a value of another type than the option's."""
        for name in ("trace", "graphs", "overlap", "prepare", "tune", "prepack"):
            value = getattr(self, name)
            if not (value is None or isinstance(value, bool)):
                raise ConfigError(f"engine 'paged': {name} is {value!r}, but must be true or false")
        is_number = isinstance(self.poison, int | float) and not isinstance(self.poison, bool)
        if self.poison is not None and not is_number:
            raise ConfigError(f"engine 'paged': poison is {self.poison!r}, but must be a number")
        if not (self.compile is None or isinstance(self.compile, bool)):
            backends = [*torch._dynamo.list_backends(), *PLAIN_BACKENDS]
            if self.compile not in backends:
                raise ConfigError(
                    f"engine 'paged': compile is {self.compile!r}, but must be true, false or one of "
                    f"{', '.join(backends)}"
                )

    def resolved(self, device: torch.device) -> PagedOptions:
        """Without None and auto. Raises `ConfigError` naming value, rule and choices."""
        is_cuda, is_cpu = device.type == "cuda", device.type == "cpu"
        by_device = "lanes" if is_cpu else "triton" if is_cuda and triton_works() else "blocks"
        backend = by_device if self.backend == "auto" else self.backend
        if backend not in BACKENDS:
            choices = ", ".join(BACKENDS)
            raise ConfigError(f"engine 'paged': backend {backend!r} is none of auto, {choices}")
        compiler = is_cuda and triton_works() if self.compile is None else self.compile
        chosen = replace(
            self,
            backend=backend,
            trace=is_cpu and not compiler if self.trace is None else self.trace,
            graphs=is_cuda if self.graphs is None else self.graphs,
            overlap=is_cuda if self.overlap is None else self.overlap,
            compile="inductor" if compiler is True else compiler,
            prepare=is_cuda if self.prepare is None else self.prepare,
        )
        for is_wrong, why in chosen._contradictions(is_cpu):
            if is_wrong:
                raise ConfigError(f"engine 'paged' on {device.type}: {why}")
        return chosen

    def _contradictions(self, is_cpu: bool) -> tuple[tuple[bool, str], ...]:
        return (
            (not is_cpu and self.backend == "lanes", "backend=lanes is for a CPU"),
            (self.backend == "triton" and not triton_works(), "backend=triton needs Triton and CUDA"),
            (not is_cpu and bool(self.trace), "trace=true is for a CPU"),
            (bool(self.trace and self.compile), "trace and compile exclude each other"),
            (self.prepack and not self.trace, "prepack=true needs trace=true"),
            (
                bool(self.graphs) and self.backend == "lanes",
                "graphs=true needs backend=blocks or triton",
            ),
            (
                bool(self.prepare) and self.backend == "lanes",
                "prepare=true needs backend=blocks or triton",
            ),
            (
                self.tune and not (self.prepare and self.backend == "triton"),
                "tune=true needs backend=triton and prepare=true",
            ),
        )
