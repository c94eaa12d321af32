"""The forward passes of an engine, seen from outside: no engine is asked to own up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from batchproof.bench.schedule import Forward

REPLAYED = "CUDA graphs were replayed, in which no hook sees a forward pass"


@dataclass
class Seen:
    """`unseen`: why there may have been more; None if nothing tells so."""

    forwards: list[Forward] = field(default_factory=list)
    unseen: str | None = None


@contextmanager
def watching(model: PreTrainedModel) -> Iterator[Seen]:
    """The embedding is looked up in each pass, whichever way an engine calls the model; but not when a
    graph is replayed, and when one is captured it is looked up and computes nothing."""
    seen, graph = Seen(), torch.cuda.CUDAGraph
    replay = graph.replay

    def note(_module: object, args: tuple[Any, ...]) -> None:
        if args and args[0].dim() == 2:
            seen.forwards.append(Forward(*args[0].shape))

    def note_replay(self: torch.cuda.CUDAGraph) -> None:
        seen.unseen = REPLAYED
        replay(self)

    hook = model.get_input_embeddings().register_forward_pre_hook(note)
    graph.replay = note_replay  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        graph.replay = replay  # type: ignore[method-assign]
        hook.remove()
