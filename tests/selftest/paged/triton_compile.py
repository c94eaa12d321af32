"""Compiles the Triton kernels, as they would be launched, for GPUs that need not be present.

The interpreter runs what no compiler would take. A launch goes its usual way as far as the compiler:
what a kernel is specialised on (types, alignment, divisibility) is Triton's own doing. Only the driver
is ours, and the launch itself is left out.
"""
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest import mock

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


@dataclass(frozen=True, slots=True)
class Processor:
    """The resources that programs on one multiprocessor share (CUDA C programming guide, table of
    technical specifications; AMD, "CDNA3 instruction set architecture")."""

    target: GPUTarget
    shared_bytes: int
    program_bytes: int  # of those, at most for one program
    reserved_bytes: int  # of those, taken from each program
    registers: int  # of 32 bits
    step: int  # registers are given to a warp in multiples of so many
    num_warps: int

    def programs(self, shared_bytes: int, registers: int, num_warps: int) -> int:
        """Returns how many programs of a kernel run at a time; `registers` are those of a thread."""
        of_a_warp = -(-registers * self.target.warp_size // self.step) * self.step
        return min(
            self.shared_bytes // max(shared_bytes + self.reserved_bytes, 1),
            self.registers // (of_a_warp * num_warps),
            self.num_warps // num_warps,
        )


KIB = 1024
PROCESSORS = {
    "sm_80": Processor(GPUTarget("cuda", 80, 32), 164 * KIB, 163 * KIB, KIB, 65536, 256, 64),
    "sm_90": Processor(GPUTarget("cuda", 90, 32), 228 * KIB, 227 * KIB, KIB, 65536, 256, 64),
    "sm_100": Processor(GPUTarget("cuda", 100, 32), 228 * KIB, 227 * KIB, KIB, 65536, 256, 64),
    "gfx942": Processor(GPUTarget("hip", "gfx942", 64), 64 * KIB, 64 * KIB, 0, 131072, 512, 32),
}


@dataclass(frozen=True, slots=True)
class Compiled:
    kernel: str
    settings: str  # the constants that are chosen, not given
    num_warps: int
    num_stages: int
    registers: int  # of a thread
    spill_bytes: int  # of a thread; stores
    shared_bytes: int
    programs: int  # at a time on one processor
    compile_s: float
    copies: int = 0  # on NVIDIA: of 16 bytes to shared memory, in the whole kernel
    small_copies: int = 0  # of 4 bytes


class _NoDevice:
    """The part of Triton's driver that a launch uses before it compiles."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


_MEASURED: dict[int, Compiled] = {}  # layers may have a kernel in common


@contextmanager
def compiling_for(processor: Processor) -> Iterator[list[Compiled]]:
    """A context whose launches only compile. Yields the compiled variants, each once.

    Triton remembers the first target it sees: use a process for each."""
    found: list[Compiled] = []
    seen: set[int] = set()
    launch = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> None:  # noqa: ARG001
        started, log = time.perf_counter(), io.StringIO()
        with redirect_stdout(log):
            compiled = launch(kernel, *args, grid=grid, warmup=True, **constants)
        if id(compiled) not in _MEASURED:  # Triton keeps them, so they differ
            compile_s = time.perf_counter() - started
            facts = constants, log.getvalue(), processor, compile_s
            _MEASURED[id(compiled)] = _measured(kernel, compiled, *facts)
        if id(compiled) not in seen:
            seen.add(id(compiled))
            found.append(_MEASURED[id(compiled)])

    driver.set_active(_NoDevice(processor.target))
    with (
        mock.patch.object(JITFunction, "run", compile_only),
        mock.patch.object(knobs.compilation, "always_compile", True),
        mock.patch.object(knobs.nvidia, "dump_ptxas_log", True),
    ):
        yield found


CHOSEN = "tile", "num_queries", "padded_splits"
PTXAS = r"Used (\d+) registers", r"(\d+) bytes spill stores"
AMDGCN = r"\.vgpr_count:\s+(\d+)", r"\.vgpr_spill_count:\s+(\d+)"


def _measured(
    kernel: Any, compiled: Any, constants: dict[str, Any], log: str, on: Processor, compile_s: float
) -> Compiled:
    is_cuda = on.target.backend == "cuda"
    text, patterns = (log, PTXAS) if is_cuda else (compiled.asm["amdgcn"], AMDGCN)
    registers, spills = (int(_only(pattern, text)) for pattern in patterns)
    facts = compiled.metadata
    return Compiled(
        kernel.__name__.strip("_").removesuffix("_kernel"),
        " ".join(f"{name}={constants[name]}" for name in CHOSEN if name in constants),
        facts.num_warps,
        facts.num_stages,
        registers,
        spills if is_cuda else 4 * spills,
        facts.shared,
        on.programs(facts.shared, registers, facts.num_warps),
        round(compile_s, 1),
        *(_num_copies(compiled.asm["ptx"]) if is_cuda else ()),
    )


def _num_copies(ptx: str) -> list[int]:
    return [len(re.findall(rf"cp\.async\.c.\.[^;]+, {size}, ", ptx)) for size in ("0x10", "0x4")]


def _only(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found, f"the compiler's report has no {pattern!r}: {text[:500]}"
    return found[1]
