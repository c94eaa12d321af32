"""The model with our attention in place of its own: one packed row in, the chosen tokens out."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import EngineConfig
from batchproof.errors import UnsupportedModelError
from batchproof_paged.attention import Attached, Backend, passing_to
from batchproof_paged.blocks import free_bytes
from batchproof_paged.compiled import compiled_layers
from batchproof_paged.fused_linears import FusedLinears
from batchproof_paged.invariant import RowsAlone
from batchproof_paged.options import INDUCTOR, PagedOptions
from batchproof_paged.torchscript import TracedForward

Outputs = tuple[Tensor, ...]  # the chosen token ids (S,) and, if they are wanted, logits (S, vocab)


class ModelPass:
    """Runs the model, eagerly, traced, or with compiled layers.

    It knows no batch: what attention reads is determined by the backend's last `begin` or
    `begin_static`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        backend: Backend,
        options: PagedOptions,
        config: EngineConfig,
    ) -> None:
        self._model = model
        self._backend = backend
        # For the caller, or for a sampler, which an engine that reads its tokens late does not have.
        self._wants_logits = config.return_logits or not options.overlap
        self._attached = Attached(model)
        self._layers: AbstractContextManager[None] = nullcontext()
        self._fused: FusedLinears | None = None
        if options.compile:
            self._layers = compiled_layers(model, str(options.compile))
        if options.compile == INDUCTOR:  # others do not compute what is the same but once
            self._fused = FusedLinears(model, free_bytes(model.device))
        is_invariant = options.batch_invariant
        self._alone: AbstractContextManager[Any] = RowsAlone() if is_invariant else nullcontext()
        self._can_choose_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._num_layers = 0  # the number that attend in a pass
        self._trace: TracedForward | None = None
        if options.trace:
            self._trace = TracedForward(model, self._forward, options.pack, is_invariant)

    def begin_run(self) -> None:
        """Prepares for a step none of whose rows were in the step before."""
        if self._trace is not None:
            self._trace.begin_run()
        self.follow(is_thorough=True)

    def follow(self, is_thorough: bool = False) -> None:
        """Has copies of weights follow them, also those that captured passes read."""
        if self._fused is not None:
            self._fused.follow(is_thorough)

    def choose(self, tokens: Tensor, positions: Tensor, last: Tensor) -> Outputs:
        """Runs the model over tokens and positions (1, T) and chooses a token at the indices `last`
        (S,).

        Returns the token ids (S,) and, if they are wanted, the logits (S, vocab). Raises
        `UnsupportedModelError` if the model's attention is not ours, or if the number of attending
        layers changes.
        """
        with passing_to(self._backend) as current:
            logits = (self._trace or self._forward)(tokens, positions, last)
            token_ids = _argmax(logits)
        if not current.num_layers:
            raise UnsupportedModelError("its attention is not behind AttentionInterface")
        if self._num_layers not in (0, current.num_layers):
            raise UnsupportedModelError(
                f"{self._num_layers} layers attend in one pass, {current.num_layers} in another"
            )
        self._num_layers = current.num_layers
        return (token_ids, logits) if self._wants_logits else (token_ids,)

    def _forward(self, tokens: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        """Returns logits (S, vocab) at the indices `last` of the packed row; the head computes no
        others."""
        keep = {"logits_to_keep": last} if self._can_choose_rows else {}
        with self._attached, self._layers, self._alone, self._fused or nullcontext():
            output = self._model(input_ids=tokens, position_ids=positions, use_cache=False, **keep)
        logits: Tensor = output.logits[0]
        return logits if self._can_choose_rows else logits[last]


def _argmax(logits: Tensor) -> Tensor:
    """Returns the token ids (S,) with the highest of the logits (S, vocab)."""
    if logits.device.type == "cpu" and logits.dtype is torch.float32:
        return torch.from_numpy(logits.numpy().argmax(axis=-1))  # 15 times as fast as torch's
    return logits.argmax(dim=-1)
