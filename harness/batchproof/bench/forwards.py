"""The forward passes of an engine, observed on the model: engines report nothing themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from batchproof.bench.schedule import Forward

REPLAYED = "CUDA graphs were replayed, in which no hook sees a forward pass"
COMPILED = "the model was compiled, so that no hook sees a forward pass"


@dataclass
class ForwardLog:
    """`forwards` in order. `unseen` says why passes may be missing; None if there is no such sign."""

    forwards: list[Forward] = field(default_factory=list)
    unseen: str | None = None


@contextmanager
def record_forwards(model: PreTrainedModel) -> Iterator[ForwardLog]:
    """Records the shape of the token ids of every forward pass inside the block.

    The hook is on the input embedding, which every pass reads however an engine calls the model. It is
    not read when a CUDA graph is replayed, so `unseen` notes that.
    """
    seen, graph = ForwardLog(), torch.cuda.CUDAGraph
    replay = graph.replay

    def note(_module: object, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():  # the log would be a part of what is compiled
            seen.unseen = COMPILED
        elif args and args[0].dim() == 2:
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
