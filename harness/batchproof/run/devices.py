"""A process and its GPUs: an engine may use more of them than the one that its model began on."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def make_current(device: torch.device) -> None:
    """Streams, events and whatever else is made without a device are made on the current one."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def synchronise(device: torch.device) -> None:
    """Wait until the device, and every other GPU that is in use, has done what it was given; timing
    anything else times the queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        for index in _others_in_use(device):
            torch.cuda.synchronize(index)
    elif device.type == "mps":
        torch.mps.synchronize()  # there is one, and it takes no argument
    elif device.type not in ("cpu", "meta"):
        torch.get_device_module(device).synchronize(device)


def _others_in_use(device: torch.device) -> Iterator[int]:
    """To wait for one that nobody has used would make a context there."""
    own = torch.cuda.current_device() if device.index is None else device.index
    for index in range(torch.cuda.device_count()):
        if index != own and torch.cuda.memory_reserved(index):
            yield index
