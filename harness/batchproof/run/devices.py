"""The devices of a process, and torch's switches and threads. An engine may use more GPUs than the one
that holds its model."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from batchproof.checks.environment import compute_exactly, positions, set_back
from batchproof.models.catalogue import resolve_device


def make_current(device: torch.device) -> None:
    """Makes the device current: streams and events belong to the current one unless they name one."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def synchronise(device: torch.device) -> None:
    """Waits until the device, and every other GPU in use, has finished its work. Without it a clock
    measures only the time to enqueue the work."""
    if device.type == "cuda":
        own = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.synchronize(device)
        for index in range(torch.cuda.device_count()):  # to wait for an unused one makes a context
            if index != own and torch.cuda.memory_reserved(index):
                torch.cuda.synchronize(index)
    elif device.type == "mps":
        torch.mps.synchronize()  # there is one device, and no argument
    elif device.type not in ("cpu", "meta"):
        torch.get_device_module(device).synchronize(device)


@contextmanager
def torch_restored() -> Iterator[None]:
    """Restores torch's switches and the random numbers, which an engine or a session may change."""
    switches = positions()
    rng, python_rng = torch.get_rng_state(), random.getstate()
    try:
        yield
    finally:
        set_back(switches)
        torch.set_rng_state(rng)
        random.setstate(python_rng)


@contextmanager
def exact_device(name: str) -> Iterator[torch.device]:
    """Yields the device, with torch's switches as comparisons need them, and restores them. Raises
    `UsageError`."""
    device = resolve_device(name)
    make_current(device)
    with torch_restored():
        compute_exactly()
        yield device


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
