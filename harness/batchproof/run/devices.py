"""The GPUs of a process: an engine may use more than the one that holds its model."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def make_current(device: torch.device) -> None:
    """Makes the device current: streams and events created without a device belong to the current
    one."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def synchronise(device: torch.device) -> None:
    """Waits until the device, and every other GPU in use, has finished its work.

    Without it a clock measures only the time to enqueue the work.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        for index in _others_in_use(device):
            torch.cuda.synchronize(index)
    elif device.type == "mps":
        torch.mps.synchronize()  # there is one device, and no argument
    elif device.type not in ("cpu", "meta"):
        torch.get_device_module(device).synchronize(device)


def _others_in_use(device: torch.device) -> Iterator[int]:
    """Yields the other GPUs in use. Waiting for an unused one would create a context there."""
    own = torch.cuda.current_device() if device.index is None else device.index
    for index in range(torch.cuda.device_count()):
        if index != own and torch.cuda.memory_reserved(index):
            yield index
