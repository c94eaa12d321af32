"""Small integers on their way to a device and back, without waiting."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from math import prod

import numpy as np
import torch
from torch import Tensor

from implementations.paged.batch import Ints


class Staging:
    """Takes arrays to a device, many in one copy from pinned memory.

    Two buffers take turns: while the copy of one step is under way, the next step fills the other.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = cycle([_PinnedBuffer(device), _PinnedBuffer(device)])

    def send(self, *arrays: Ints, into: Tensor | None = None) -> tuple[Tensor, ...]:
        """A tensor for each array, all of them views of one int64 tensor: `into`, if it is given."""
        sizes = [each.size for each in arrays]
        buffer = next(self._buffers)
        staged = buffer.claim(sum(sizes))
        np.concatenate([each.ravel() for each in arrays], out=staged.numpy())
        sent = torch.empty_like(staged, device=self._device) if into is None else into.view(-1)
        sent.copy_(staged, non_blocking=True)
        buffer.mark_sent()
        views = zip(sent.split(sizes), arrays, strict=True)
        return tuple(view.view(array.shape) for view, array in views)


class _PinnedBuffer:
    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._cells = self._allocate(1024)
        self._sent: torch.cuda.Event | None = None  # since when its last content is of no interest

    def _allocate(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int64, pin_memory=self._is_cuda)

    def claim(self, size: int) -> Tensor:
        """`size` cells of it, once the copy they were in is done."""
        if self._sent is not None:
            self._sent.synchronize()
        if size > len(self._cells):
            self._cells = self._allocate(1 << size.bit_length())
        return self._cells[:size]

    def mark_sent(self) -> None:
        if self._is_cuda:
            self._sent = self._sent or torch.cuda.Event()
            self._sent.record()


def read_later(ids: Tensor) -> Callable[[], list[int]]:
    """Have `ids` (n,) int64 copied to the host; the function returned waits for the copy, no longer.

    The copy takes its turn on the current stream, so what is launched after it may overwrite `ids`.
    """
    if ids.device.type != "cuda":
        token_ids: list[int] = ids.tolist()
        return lambda: token_ids
    host = torch.empty(prod(ids.shape), dtype=ids.dtype, pin_memory=True)
    host.copy_(ids, non_blocking=True)
    is_copied = torch.cuda.Event()
    is_copied.record()

    def read() -> list[int]:
        is_copied.synchronize()
        return host.tolist()

    return read
