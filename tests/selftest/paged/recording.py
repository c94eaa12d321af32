"""A CUDA graph without CUDA: the operations of a step, repeated on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from batchproof_paged.graphs import Outputs, Step


class Record(TorchDispatchMode):
    """Records operations while Python runs; a replay has operations and addresses only."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            pairs = zip(tensors(result), tensors(again), strict=True)
            for old, new in pairs:
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def tensors(result: Any) -> list[Tensor]:
    results = result if isinstance(result, tuple | list) else [result]
    return [each for each in results if isinstance(each, Tensor)]


def record(step: Step) -> Step:
    """Captures a step as `CudaCapture` does: warm-ups, a recording, replays."""
    step()
    with Record() as recorded:
        outputs = step()

    def replay() -> Outputs:
        recorded.replay()
        return outputs

    return replay
