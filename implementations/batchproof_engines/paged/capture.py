"""How a repeated step is captured: as a graph on CUDA; elsewhere it is simply called again."""

from __future__ import annotations

from collections.abc import Callable

import torch

from batchproof_engines.paged.model_pass import Outputs

Step = Callable[[], Outputs]
Capture = Callable[[Step], Step]

NUM_WARM_UPS = 2  # the first may compile, the second runs what was compiled


def call_again(step: Step) -> Step:
    """Stands in for a capture where there are no graphs.

    Buckets, padding and static tensors are as with graphs.
    """
    return step


class CudaCapture:
    """Records what a step launches.

    All graphs take their memory from one pool, because no two of them run at the same time. Record the
    largest first, so that the others fit into its memory. A pool without a graph is gone: call `forget`
    before recording the next one. Warm-ups and recordings share one stream; otherwise each stream would
    keep a cuBLAS workspace.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self.forget()

    def forget(self) -> None:
        """Starts a new memory pool: the graphs recorded so far are no longer used."""
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        # One-time work (allocation, compilation, choice of algorithms) must not be recorded.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(NUM_WARM_UPS):
                step()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Work of other threads, such as a pinned allocation, must not invalidate this capture.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            outputs = step()

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay
