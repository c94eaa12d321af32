"""The machine: facts of the device a figure was measured on, the CPU time of this process and of those
it has started, and the limits of the machine. Versions and commit: `batchproof.records.provenance`.

The limits, bytes moved and matrices multiplied, are measured in the same run, with torch's current
number of threads. A ceiling is the highest rate that any of torch's kernels reaches, because one
library's kernel can be far from what the processor does: in float32 on an AMD EPYC with AVX-512,
`torch.mm` (MKL) multiplies at less than half the rate of oneDNN.
"""

import os
import platform
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.nn import functional

from batchproof.records.provenance import cpu_name
from batchproof.run.devices import synchronise


def device_facts(device: torch.device) -> dict[str, Any]:
    """Returns type, name, driver and memory in bytes, ready for JSON. The name is that of a model of
    device, never of a host."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = sorted(os.sched_getaffinity(0)) if has_affinity else None  # that this process may run on
    facts: dict[str, Any] = {"type": device.type, "threads": torch.get_num_threads(), "cores": cores}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return facts | {
            "name": properties.name,
            "driver": f"driver {_nvidia_driver()}, CUDA {torch.version.cuda}",
            "memory_bytes": properties.total_memory,
        }
    name = cpu_name() if device.type == "cpu" else f"{platform.machine()} GPU"
    sizes = ("SC_PHYS_PAGES", "SC_PAGE_SIZE")
    pages, page_bytes = (os.sysconf(each) if each in os.sysconf_names else 0 for each in sizes)
    return facts | {"name": name, "driver": None, "memory_bytes": pages * page_bytes or None}


def _nvidia_driver() -> str:
    """Returns the version of the driver, which all GPUs share; "unknown" without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return ran.stdout.partition("\n")[0]


PROC = Path("/proc")
CPUCLOCK_SCHED = 2  # in the id of the CPU clock of a process, beside its number: clock_getcpuclockid(3)


def descendants() -> tuple[int, ...]:
    """Returns the numbers of all living processes that this one has started, and those they started."""
    children: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):  # it has ended
            # The name, in parentheses, may hold anything; state and parent come behind it.
            parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found = list(children.get(os.getpid(), ()))
    for pid in found:  # it grows meanwhile
        found += children.get(pid, ())
    return tuple(found)


class CpuMeter:
    """`CpuMeter()`, run, `stop()`, `seconds()`: CPU time of this process and of those it has started: a
    released engine computes in one of its own. Elsewhere than on Linux this process alone is seen.

    Looking at other processes costs milliseconds, which lie outside of the measured stretch.
    """

    def __init__(self) -> None:
        self._others_s = _cpu_of_others()
        self.own_s = time.process_time()  # once stopped: CPU seconds of this process alone

    def stop(self) -> None:
        """Ends the stretch, at the cost of reading one clock."""
        self.own_s = time.process_time() - self.own_s

    def seconds(self) -> float:
        """Returns the CPU seconds of the stretch that has been stopped. Called once, soon after
        `stop`: what other processes compute in between is counted."""
        return self.own_s + max(0.0, _cpu_of_others() - self._others_s)


def _cpu_of_others() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)  # those that were waited for
    seconds = ended.ru_utime + ended.ru_stime
    for pid in descendants():
        with suppress(OSError):  # it has ended
            seconds += time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)
    return seconds


MIN_ROUNDS, SECONDS_OF_ROUNDS = 3, 0.3
PATIENCE_S = 0.03  # a product this slow is large enough: some CPUs have no fast one in float16


@dataclass(frozen=True, slots=True)
class Ceilings:
    copy_bytes_per_s: float  # read and written
    read_bytes_per_s: float
    matmul_flop_per_s: float  # a multiply-add is two operations

    @property
    def bytes_per_s(self) -> float:
        """The memory ceiling: the faster of copying and reading."""
        return max(self.copy_bytes_per_s, self.read_bytes_per_s)


@dataclass(frozen=True, slots=True)
class _Sizes:
    copy_bytes: int  # far beyond any cache
    matrix: int  # rows and columns, at most
    num_calls: int  # between two clock readings, so that launch overhead does not count


SIZES = {
    "cuda": _Sizes(1 << 30, 8192, 10),
    "mps": _Sizes(1 << 28, 4096, 4),
    "cpu": _Sizes(1 << 28, 1024, 1),
}


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Returns the best of several rounds of each; takes one to two seconds on one CPU thread."""
    sizes = SIZES.get(device.type, SIZES["cpu"])
    source = torch.ones(sizes.copy_bytes // 4, device=device)  # float32
    target = torch.empty_like(source)
    copy_s = _best_s(lambda: target.copy_(source), device, sizes.num_calls)
    read_s = _best_s(source.sum, device, sizes.num_calls)
    return Ceilings(
        copy_bytes_per_s=2 * source.nbytes / copy_s,
        read_bytes_per_s=source.nbytes / read_s,
        matmul_flop_per_s=_matmul_flop_per_s(device, dtype, sizes),
    )


def _matmul_flop_per_s(device: torch.device, dtype: torch.dtype, sizes: _Sizes) -> float:
    """Returns the rate of the fastest kernel at its best size: a CPU may reach it on small matrices."""
    best, size = 0.0, min(256, sizes.matrix)
    while True:
        for multiply in _products(size, device, dtype):
            best_s = _best_s(multiply, device, sizes.num_calls, SECONDS_OF_ROUNDS / 2)
            best = max(best, 2 * size**3 / best_s)
        if size >= sizes.matrix or best_s > PATIENCE_S:
            return best
        size *= 2


def _products(size: int, device: torch.device, dtype: torch.dtype) -> Iterator[Callable[[], object]]:
    """Yields a square product by each library that torch has for it."""
    # Random, because a GPU draws less power and runs faster on zeros.
    left, right = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    yield lambda: torch.mm(left, right, out=product)
    if device.type == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available():
        in_onednn, weight = left.to_mkldnn(), right.to_mkldnn()
        yield lambda: functional.linear(in_onednn, weight)


def _best_s(
    action: Callable[[], object], device: torch.device, num_calls: int, for_s: float = SECONDS_OF_ROUNDS
) -> float:
    """Returns the seconds of one call in the fastest round, after one uncounted call."""
    action()
    synchronise(device)
    best_s, num_rounds, began = inf, 0, perf_counter()
    while num_rounds < MIN_ROUNDS or perf_counter() - began < for_s:
        start = perf_counter()
        for _ in range(num_calls):
            action()
        synchronise(device)
        best_s = min(best_s, (perf_counter() - start) / num_calls)
        num_rounds += 1
    return best_s
