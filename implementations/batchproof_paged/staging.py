"""Small integers on their way to a device and back, without waiting."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle

import numpy as np
import torch
from torch import Tensor

from batchproof_paged.batch import Ints


def current(device: torch.device) -> AbstractContextManager[object]:
    """While entered, streams, events and kernels are those of this device, whichever was current."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


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
        np.concatenate(arrays, axis=None, out=staged.numpy())
        sent = torch.empty_like(staged, device=self._device) if into is None else into
        sent.copy_(staged, non_blocking=True)
        buffer.mark_sent()
        if into is not None:
            return ()  # the caller has its views
        views = zip(sent.split(sizes), arrays, strict=True)
        return tuple(view.view(array.shape) for view, array in views)


class Reader:
    """Takes chosen tokens to the host. Two buffers take turns: one step's tokens are read while the
    next step's are under way."""

    def __init__(self, device: torch.device) -> None:
        self._buffers = cycle([_PinnedBuffer(device), _PinnedBuffer(device)])

    def read_later(self, ids: Tensor) -> Callable[[], list[int]]:
        """Have `ids` (n,) int64 copied to the host; the function returned waits for the copy, no
        longer, and is to be called before the next call but one of this.

        The copy takes its turn on the current stream, so what is launched after it may overwrite `ids`.
        """
        if ids.device.type != "cuda":
            token_ids: list[int] = ids.tolist()
            return lambda: token_ids
        buffer = next(self._buffers)
        host = buffer.claim(len(ids))
        host.copy_(ids, non_blocking=True)
        buffer.mark_sent()

        def read() -> list[int]:
            buffer.wait()
            return host.tolist()

        return read


class _PinnedBuffer:
    """Host memory that one copy at a time reads or fills."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._cells = self._allocate(1024)
        self._sent: torch.cuda.Event | None = None  # after it the last copy is done

    def _allocate(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int64, pin_memory=self._is_cuda)

    def claim(self, size: int) -> Tensor:
        """`size` cells of it, once the last copy is done."""
        self.wait()
        if size > len(self._cells):
            self._cells = self._allocate(1 << size.bit_length())
        return self._cells[:size]

    def mark_sent(self) -> None:
        if self._is_cuda:
            self._sent = self._sent or torch.cuda.Event()
            self._sent.record()

    def wait(self) -> None:
        if self._sent is not None:
            self._sent.synchronize()
