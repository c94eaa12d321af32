"""The peak of the GPU memory held while something ran."""

from __future__ import annotations

from collections.abc import Callable

import torch


class PeakMemory:
    """`start()`, run, `stop()` returns the peak in bytes above what was held at the start.

    It is that of torch's allocator, summed over all GPUs of this process; None on other devices.
    """

    def __init__(self, device: torch.device) -> None:
        self._gpus = range(torch.cuda.device_count()) if device.type == "cuda" else ()
        self._before_bytes = 0

    def start(self, touch: Callable[[], object] = lambda: None) -> None:
        """Begins. `touch` uses what all engines share (weights, buffers of libraries), so that the
        first engine measured is not charged for it."""
        touch()
        for gpu in self._gpus:
            torch.cuda.reset_peak_memory_stats(gpu)
        self._before_bytes = sum(map(torch.cuda.memory_allocated, self._gpus))

    def stop(self) -> int | None:
        """Returns the peak in bytes above the start, or None where it cannot be measured."""
        if not self._gpus:
            return None
        return sum(map(torch.cuda.max_memory_allocated, self._gpus)) - self._before_bytes
