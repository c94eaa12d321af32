"""From a plan to the tokens it chooses: the one room that calls the model."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.errors import UnsupportedModelError
from implementations.paged.attention import Attached, Backend, passing_to
from implementations.paged.batch import RaggedBatch
from implementations.paged.scheduler import Scheduled
from implementations.paged.tracing import traced


@dataclass(frozen=True, slots=True)
class Flight:
    """A step given to the device; its tokens may not be there yet."""

    sampled: tuple[Scheduled, ...]  # (S,) the rows a token is chosen for
    token_ids: Tensor  # (S,)
    logits: Tensor  # (S, vocab) they were chosen from

    def land(self) -> list[int]:
        """Wait for the tokens."""
        return self.token_ids.tolist()


class ModelRunner:
    """Feeds packed rows to the model with our attention in place of its own."""

    def __init__(self, model: PreTrainedModel, backend: Backend, is_traced: bool = False) -> None:
        self._model = model
        self._backend = backend
        self._attached = Attached(model)
        self._can_choose_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._forward = (traced(model, self._plain_forward) if is_traced else None) or self._plain_forward

    def launch(self, batch: RaggedBatch) -> Flight:
        """One forward pass."""
        self._backend.begin(batch)
        device = self._model.device
        tokens, positions, last = (
            torch.from_numpy(each).to(device)
            for each in (batch.token_ids, batch.position_ids, batch.sampled_tokens)
        )
        with passing_to(self._backend) as layers:
            logits = self._forward(tokens[None], positions[None], last)
            token_ids = _argmax(logits)
        if not layers:
            raise UnsupportedModelError("its attention is not behind AttentionInterface")
        sampled = tuple(batch.scheduled[row] for row in batch.sampled_rows)
        return Flight(sampled, token_ids, logits)

    def _plain_forward(self, tokens: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        """Logits (S, vocab) at the given places of the packed row; the head computes no others."""
        keep = {"logits_to_keep": last} if self._can_choose_rows else {}
        with self._attached:
            output = self._model(input_ids=tokens, position_ids=positions, use_cache=False, **keep)
        logits: Tensor = output.logits[0]
        return logits if self._can_choose_rows else logits[last]


def _argmax(logits: Tensor) -> Tensor:
    """(S,) of (S, vocab)."""
    if logits.device.type == "cpu" and logits.dtype is torch.float32:
        return torch.from_numpy(logits.numpy().argmax(axis=-1))  # 15 times as fast as torch's
    return logits.argmax(dim=-1)
