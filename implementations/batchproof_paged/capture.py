"""How a repeated step is captured: as a graph on CUDA; elsewhere it is simply called again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch

from batchproof_paged.model_pass import Outputs

Step = Callable[[], Outputs]
Capture = Callable[[Step], Step]

NUM_WARM_UPS = 2  # the first may compile, the second runs what was compiled


def call_again(step: Step) -> Step:
    """Stands in for a capture where there are no graphs.

    Buckets, padding and static tensors are as with graphs.
    """
    return step


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded step, to be replayed.

    A graph reads again where tensors lay when it was recorded, and keeps none of them alive. The step
    does: what it reads and has not made itself, it holds.
    """

    step: Step
    graph: torch.cuda.CUDAGraph
    outputs: Outputs

    def __call__(self) -> Outputs:
        self.graph.replay()
        return self.outputs


class CudaCapture:
    """Records what a step launches.

    All graphs take their memory from one pool, because no two of them run at the same time. Record the
    largest first, so that the others fit into its memory. A pool without a graph is gone: call `forget`
    before recording the next one.
    """

    checks: ClassVar[dict[str, Any]] = {}  # more arguments of `torch.cuda.graph`, for tests

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.forget()

    def forget(self) -> None:
        """Starts a new memory pool: the graphs recorded so far are no longer used."""
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        try:
            return self._recorded(step, _stream(self._device))
        except BaseException:
            # The stream may be capturing still, and the pool be half a recording's.
            _stream.cache_clear()
            self.forget()
            raise

    def _recorded(self, step: Step, stream: torch.cuda.Stream) -> Recorded:
        # One-time work (allocation, compilation, choice of algorithms) must not be recorded.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(NUM_WARM_UPS):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Work of other threads, such as a pinned allocation, must not invalidate this capture.
        modes = {"capture_error_mode": "thread_local", **self.checks}
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, **modes):
            outputs = step()
        return Recorded(step, graph, outputs)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Returns the stream for warm-ups and recordings of all engines: each keeps a cuBLAS workspace."""
    return torch.cuda.Stream(device)
