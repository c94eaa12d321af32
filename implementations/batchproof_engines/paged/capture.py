"""What becomes of a step that is to be repeated: on CUDA a graph, elsewhere it is called again."""

from __future__ import annotations

from collections.abc import Callable

import torch

from batchproof_engines.paged.model_pass import Outputs

Step = Callable[[], Outputs]
Capture = Callable[[Step], Step]

NUM_REHEARSALS = 2  # the first may compile, the second runs what was compiled


def call_again(step: Step) -> Step:
    """The stand-in for a capture where there are no graphs: buckets, padding and static tensors are as
    they would be."""
    return step


class CudaCapture:
    """Records what a step launches.

    All graphs take their memory from one pool, for no two of them run at a time; record the largest
    first, and the others fit into what it took. A pool without a graph left is gone: `forget` it before
    the next one is recorded. Rehearsals and recordings share one stream, whose cuBLAS workspace would
    otherwise be left behind by each.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self.forget()

    def forget(self) -> None:
        """The graphs made so far are no longer used."""
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        # What happens once (allocation, compilation, choice of algorithms) must not be recorded.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(NUM_REHEARSALS):
                step()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Another thread's work, a pinned allocation say, is no business of this capture.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            outputs = step()

        def replay() -> Outputs:
            graph.replay()
            return outputs

        return replay
