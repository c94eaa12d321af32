"""The peak of the memory held while something ran."""

from __future__ import annotations

import ctypes
import gc
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
        self._device = device
        self._before: int | None = None
        self._others: dict[int, int] = {}  # process that was there before -> its bytes then

    def start(self, touch: Callable[[], object] = lambda: None) -> None:
        """Begins. `touch` uses what all engines share (weights, buffers of libraries), so that the
        first engine measured is not charged for it."""
        gc.collect()
        if self._device.type == "cpu":
            _give_back_freed_memory()
        touch()
        if self._device.type == "cuda":
            gpus = range(torch.cuda.device_count())
            for gpu in gpus:
                torch.cuda.reset_peak_memory_stats(gpu)
            self._before = sum(map(torch.cuda.memory_allocated, gpus))
        elif self._device.type == "cpu" and _reset_peak("self"):
            self._before = _resident_bytes("self", "VmRSS")
            self._others = {
                pid: _resident_bytes(pid, "VmRSS") or 0 for pid in descendants() if _reset_peak(pid)
            }

    def stop(self) -> int | None:
        """Returns the peak in bytes above the start, or None where it cannot be measured."""
        if self._before is None:
            return None
        if self._device.type == "cuda":
            gpus = range(torch.cuda.device_count())
            return sum(map(torch.cuda.max_memory_allocated, gpus)) - self._before
        peak = _resident_bytes("self", "VmHWM")
        if peak is None:
            return None
        growth = [peak - self._before]
        for pid in descendants():
            growth.append((_resident_bytes(pid, "VmHWM") or 0) - self._others.get(pid, 0))
        return sum(max(0, each) for each in growth)


def _give_back_freed_memory() -> None:
    """Returns freed memory to the system: what the C library keeps would hide new allocations."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _reset_peak(pid: int | str) -> bool:
    try:
        (PROC / str(pid) / "clear_refs").write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def _resident_bytes(pid: int | str, key: str) -> int | None:
    return bytes_in(PROC / str(pid) / "status", key)
