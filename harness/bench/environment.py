"""The device that a figure was measured on. Versions and commit: `harness/provenance.py`."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

from harness.provenance import cpu_name


def device_facts(device: torch.device) -> dict[str, Any]:
    """Ready for JSON; the name is a model's, never a host's."""
    facts: dict[str, Any] = {"type": device.type, "threads": torch.get_num_threads()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        driver = f"{_nvidia_driver()}, CUDA {torch.version.cuda}"
        return facts | {
            "name": properties.name,
            "driver": driver,
            "memory_bytes": properties.total_memory,
        }
    name = cpu_name() if device.type == "cpu" else f"{platform.machine()} GPU"
    return facts | {"name": name, "driver": None, "memory_bytes": _total_memory_bytes()}


@cache
def _nvidia_driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "driver unknown"
    return f"driver {ran.stdout.splitlines()[0].strip()}" if ran.stdout else "driver unknown"


def _total_memory_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    totals = [line.split()[1] for line in lines if line.startswith("MemTotal:")]
    return 1024 * int(totals[0]) if totals else None
