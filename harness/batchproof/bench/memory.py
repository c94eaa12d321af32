"""The peak of the memory held while something ran."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from contextlib import suppress

import torch

from batchproof.bench.processes import PROC, bytes_in, descendants

RESET_PEAK = "5"  # proc(5): resets the peak resident set size of a process


class PeakMemory:
    """`start()`, run, `stop()` returns the peak in bytes above what was held at the start.

    CUDA: torch's allocator, summed over all GPUs of this process. CPU: resident memory of this process
    and of those it has started, each with its own peak; only Linux can measure that from a chosen
    moment on, so it is None elsewhere and on MPS.
    """

    def __init__(self, device: torch.device) -> None:
        self._type = device.type
        self._before: dict[int, int] = {}  # GPU or process -> its bytes at the start

    def start(self, touch: Callable[[], object] = lambda: None) -> None:
        """Begins. `touch` uses what all engines share (weights, buffers of libraries), so that the
        first engine measured is not charged for it."""
        gc.collect()
        if self._type == "cpu":
            with suppress(OSError, AttributeError):  # what the C library keeps hides new allocations
                ctypes.CDLL("libc.so.6").malloc_trim(0)
        touch()
        if self._type == "cuda":
            for gpu in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(gpu)
                self._before[gpu] = torch.cuda.memory_allocated(gpu)
        elif self._type == "cpu":
            pids = [pid for pid in (os.getpid(), *descendants()) if _reset_peak(pid)]
            self._before = {pid: _resident_bytes(pid, "VmRSS") for pid in pids}

    def stop(self) -> int | None:
        """Returns the peak in bytes above the start, or None where it cannot be measured."""
        if self._type == "cuda":
            gpus = range(torch.cuda.device_count())
            return sum(map(torch.cuda.max_memory_allocated, gpus)) - sum(self._before.values())
        if os.getpid() not in self._before:
            return None
        peaks = {pid: _resident_bytes(pid, "VmHWM") for pid in (os.getpid(), *descendants())}
        return sum(max(0, peak - self._before.get(pid, 0)) for pid, peak in peaks.items())


def _reset_peak(pid: int) -> bool:
    try:
        (PROC / str(pid) / "clear_refs").write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def _resident_bytes(pid: int, key: str) -> int:
    return bytes_in(PROC / str(pid) / "status", key) or 0
