"""From a plan to the tokens it chooses: the one room that calls the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from harness.api import EngineConfig
from harness.errors import UnsupportedModelError
from implementations.paged.attention import Attached, Backend, passing_to
from implementations.paged.batch import RaggedBatch
from implementations.paged.blocks import BlockPool
from implementations.paged.graphs import CudaCapture, DecodeGraphs, LastTokens, Outputs, call_again
from implementations.paged.options import PagedOptions
from implementations.paged.scheduler import Scheduled
from implementations.paged.staging import Staging, read_later
from implementations.paged.tracing import traced


@dataclass(frozen=True, slots=True)
class Flight:
    """A step given to the device; its tokens may not be there yet."""

    sampled: tuple[Scheduled, ...]  # (S,) the rows a token is chosen for
    land: Callable[[], list[int]]  # waits for the S tokens
    logits: Tensor | None  # (S, vocab) they were chosen from, if they are wanted


class ModelRunner:
    """Feeds packed rows to the model with our attention in place of its own."""

    graphs_class = DecodeGraphs
    last_tokens_class = LastTokens

    def __init__(
        self, model: PreTrainedModel, backend: Backend, config: EngineConfig, options: PagedOptions
    ) -> None:
        self._model = model
        self._backend = backend
        self._wants_logits = config.return_logits
        self._attached = Attached(model)
        self._can_choose_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._call = _compiled(model, options.compile)
        trace = traced(model, self._plain_forward, options.prepack) if options.trace else None
        self._forward = trace or self._plain_forward
        self._last_tokens = self.last_tokens_class(config.max_num_seqs, model.device)
        self._staging = Staging(model.device)
        self._graphs: DecodeGraphs | None = None
        if options.graphs:
            assert isinstance(backend, BlockPool), "the options exclude it"
            capture = CudaCapture() if model.device.type == "cuda" else call_again
            pieces = (backend, self._decode, self._last_tokens, config.max_num_seqs, model.device)
            self._graphs = self.graphs_class(*pieces, capture)

    def launch(self, batch: RaggedBatch) -> Flight:
        """One forward pass."""
        if self._graphs is not None and self._graphs.can_run(batch):
            token_ids, logits = self._graphs.run(batch)
            if len(batch.sampled_rows) < len(batch.scheduled):  # a chunk of one token is not sampled
                token_ids, logits = token_ids[batch.sampled_rows], logits[batch.sampled_rows]
        else:
            token_ids, logits = self._run(batch)
        sampled = tuple(batch.scheduled[row] for row in batch.sampled_rows)
        # The next captured step overwrites them.
        kept = logits.clone() if self._wants_logits else None
        return Flight(sampled, read_later(token_ids), kept)

    @torch.inference_mode()
    def _run(self, batch: RaggedBatch) -> Outputs:
        """Tokens (S,) and logits (S, vocab) of the sampled rows."""
        self._backend.begin(batch)
        tokens, positions, last, lanes, sampled_lanes = self._staging.send(
            batch.token_ids,
            batch.position_ids,
            batch.sampled_tokens,
            batch.lanes,
            batch.lanes[batch.sampled_rows],
        )
        num = batch.num_decodes  # only they can have tokens that the host does not know yet
        tokens[:num] = self._last_tokens.fill_in(tokens[:num], lanes[:num])
        token_ids, logits = self._sample(tokens[None], positions[None], last)
        self._last_tokens.put(sampled_lanes, token_ids)
        return token_ids, logits

    def _decode(self, tokens: Tensor, positions: Tensor) -> Outputs:
        """The same for B rows of one token each, for capture: all are sampled."""
        return self._sample(tokens, positions, torch.arange(tokens.shape[1], device=tokens.device))

    def _sample(self, tokens: Tensor, positions: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        with passing_to(self._backend) as layers:
            logits = self._forward(tokens, positions, last)
            token_ids = _argmax(logits)
        if not layers:
            raise UnsupportedModelError("its attention is not behind AttentionInterface")
        return token_ids, logits

    def _plain_forward(self, tokens: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        """Logits (S, vocab) at the given places of the packed row; the head computes no others."""
        keep = {"logits_to_keep": last} if self._can_choose_rows else {}
        with self._attached:
            output = self._call(input_ids=tokens, position_ids=positions, use_cache=False, **keep)
        logits: Tensor = output.logits[0]
        return logits if self._can_choose_rows else logits[last]


def _compiled(model: PreTrainedModel, backend: bool | str) -> Callable[..., Any]:
    if not backend:
        return model
    chosen = backend if isinstance(backend, str) else "inductor"
    compiled: Callable[..., Any] = torch.compile(model, dynamic=True, backend=chosen)
    return compiled


def _argmax(logits: Tensor) -> Tensor:
    """(S,) of (S, vocab)."""
    if logits.device.type == "cpu" and logits.dtype is torch.float32:
        return torch.from_numpy(logits.numpy().argmax(axis=-1))  # 15 times as fast as torch's
    return logits.argmax(dim=-1)
