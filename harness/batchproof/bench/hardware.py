"""The device a figure was measured on, and its peak of memory. Versions and commit:
`batchproof.records.provenance`."""

import os
import platform
import subprocess
from collections.abc import Callable
from typing import Any

import torch

from batchproof.records.provenance import cpu_name

NVIDIA_FIELDS = (
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.draw",
    "power.limit",
)


def device_facts(device: torch.device) -> dict[str, Any]:
    """Returns type, name, driver, memory in bytes and, on CUDA, clocks and power, ready for JSON. The
    name is that of a model of device, never of a host."""
    facts: dict[str, Any] = {"type": device.type, "threads": torch.get_num_threads(), "cores": _cores()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found = _query_nvidia_smi(f"GPU-{properties.uuid}")
        driver = f"driver {found.pop('driver_version')}" if found else "driver unknown"
        return facts | {
            "name": properties.name,
            "driver": f"{driver}, CUDA {torch.version.cuda}",
            "memory_bytes": properties.total_memory,
            "clocks": found or None,
        }
    name = cpu_name() if device.type == "cpu" else f"{platform.machine()} GPU"
    sizes = ("SC_PHYS_PAGES", "SC_PAGE_SIZE")
    pages, page_bytes = (os.sysconf(each) if each in os.sysconf_names else 0 for each in sizes)
    return facts | {"name": name, "driver": None, "memory_bytes": pages * page_bytes or None}


def _cores() -> list[int] | None:
    """Returns the CPU cores that this process may run on, or None where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _query_nvidia_smi(uuid: str) -> dict[str, str]:
    """Returns driver version, clocks and power of the GPU with this id, as nvidia-smi prints them;
    empty without nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu=uuid,{','.join(NVIDIA_FIELDS)}", "--format=csv,noheader"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    gpus = [[cell.strip() for cell in line.split(",")] for line in ran.stdout.splitlines()]
    gpus = [cells for cells in gpus if len(cells) == len(NVIDIA_FIELDS) + 1]
    # A MIG slice has its own id, which is not in the list.
    own = next((cells for cells in gpus if cells[0] == uuid), gpus[0] if gpus else None)
    return dict(zip(NVIDIA_FIELDS, own[1:], strict=True)) if own else {}


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
        if not self._gpus:
            return None
        return sum(map(torch.cuda.max_memory_allocated, self._gpus)) - self._before_bytes
