"""From a plan to the tokens it chooses: arrays go out, a pass is launched, tokens come back."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import EngineConfig
from batchproof.errors import UnsupportedModelError
from batchproof_engines.model_support import state_of
from batchproof_paged.attention import Attached, Backend, passing_to
from batchproof_paged.batch import Ints, RaggedBatch
from batchproof_paged.blocks import BlockPool
from batchproof_paged.compiled import LEAST_TOKENS, compiled_layers
from batchproof_paged.decoder import native_decoder
from batchproof_paged.graphs import (
    CapturedSteps,
    CudaCapture,
    LastTokens,
    Outputs,
    call_again,
    decode_buckets,
    prompt_buckets,
)
from batchproof_paged.invariant import RowsAlone
from batchproof_paged.options import PagedOptions
from batchproof_paged.packing import PackedProducts
from batchproof_paged.rows import Rows
from batchproof_paged.staging import Reader, Staging, current


@dataclass(frozen=True, slots=True)
class Flight:
    """A step given to the device; its tokens may not be there yet."""

    sampled: Rows  # S, the rows a token is chosen for
    land: Callable[[], list[int]]  # waits for the S tokens, or L, as `RaggedBatch.sampled_tokens`
    logits: Tensor | None  # (S or L, vocab) the model's, but for an engine that reads tokens late
    scored: Tensor | None = None  # (P, vocab) behind `RaggedBatch.scored_tokens`, if there are any


class ModelPass:
    """Runs the model with our attention, eagerly, natively, or with compiled layers: one packed row
    in, the chosen tokens out.

    It knows no batch: what attention reads is determined by the backend's last `begin` or
    `begin_static`.
    """

    def __init__(
        self, model: PreTrainedModel, backend: Backend, options: PagedOptions, config: EngineConfig
    ) -> None:
        self._model = model
        self._backend = backend
        # For the caller, or for a sampler, which an engine that reads its tokens late does not have.
        self._wants_logits = config.return_logits or not options.overlap
        self._attached = Attached(model)
        self._layers: AbstractContextManager[None] = nullcontext()
        if options.compile:
            self._layers = compiled_layers(model, str(options.compile))
        is_invariant = options.batch_invariant
        self._alone: AbstractContextManager[Any] = RowsAlone() if is_invariant else nullcontext()
        self._can_choose_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._num_layers = 0  # the number that attend in a pass
        self._options = options
        self._prepare()

    def _prepare(self) -> None:
        """Finds how to run the model as it is now."""
        model, options = self._model, self._options
        self._products: PackedProducts | None = None
        self._native = native_decoder(model, self._forward, self._backend) if options.native else None
        if options.native and self._native is None:
            self._products = PackedProducts(model)
        self._state = state_of(model)
        self._parameters = [*map(id, model.parameters())]

    def begin_run(self) -> None:
        """Prepares for a step none of whose rows were in the step before.

        Raises `UnsupportedModelError` if the model is another than when the engine was built.
        """
        if self._native is None and self._products is None:
            return
        state, parameters = state_of(self._model), [*map(id, self._model.parameters())]
        if self._state[0] != state[0]:  # its modules and hooks
            raise UnsupportedModelError(
                "modules of the model, or hooks on them, have changed since the engine was built: "
                "build another"
            )
        if self._state != state or self._parameters != parameters:
            self._prepare()
        if self._native is not None:
            self._native.follow()
        if self._products is not None:
            self._products.follow(is_thorough=True)

    def choose(self, tokens: Tensor, positions: Tensor, last: Tensor) -> Outputs:
        """Runs the model over tokens and positions (1, T) and chooses a token at the indices `last`
        (S,).

        Returns the token ids (S,) and, if they are wanted, the logits (S, vocab). Raises
        `UnsupportedModelError` if the model's attention is not ours, or if the number of attending
        layers changes.
        """
        if self._native is not None:
            return self.choose_natively(tokens[0].numpy(), last.numpy())
        with passing_to(self._backend) as current_pass:
            if self._products is not None:
                self._products.follow(is_thorough=False)
            logits = self._forward(tokens, positions, last)
            token_ids = _argmax(logits)
        num_layers = current_pass.num_layers
        if not num_layers:
            raise UnsupportedModelError("its attention is not behind AttentionInterface")
        if self._num_layers not in (0, num_layers):
            raise UnsupportedModelError(
                f"{self._num_layers} layers attend in one pass, {num_layers} in another"
            )
        self._num_layers = num_layers
        return (token_ids, logits) if self._wants_logits else (token_ids,)

    @property
    def is_native(self) -> bool:
        return self._native is not None

    def choose_natively(self, tokens: Ints, last: Ints) -> Outputs:
        """Is `choose` for `tokens` (T,), whose positions the backend knows."""
        assert self._native is not None, "the caller has asked"
        token_ids, logits = self._native(tokens, last)
        return (token_ids, logits) if self._wants_logits else (token_ids,)

    def _forward(self, tokens: Tensor, positions: Tensor, last: Tensor) -> Tensor:
        """Returns logits (S, vocab) at the indices `last` of the packed row; the head computes no
        others."""
        keep = {"logits_to_keep": last} if self._can_choose_rows else {}
        with self._attached, self._layers, self._alone, self._products or nullcontext():
            output = self._model(input_ids=tokens, position_ids=positions, use_cache=False, **keep)
        logits: Tensor = output.logits[0]
        return logits if self._can_choose_rows else logits[last]


def _argmax(logits: Tensor) -> Tensor:
    """Returns the token ids (S,) with the highest of the logits (S, vocab)."""
    if logits.device.type == "cpu" and logits.dtype is torch.float32:
        return torch.from_numpy(logits.numpy().argmax(axis=-1))  # 15 times as fast as torch's
    return logits.argmax(dim=-1)


class ModelRunner:
    """Feeds the model, and remembers on the device what it chose last."""

    def __init__(
        self, model: PreTrainedModel, backend: Backend, config: EngineConfig, options: PagedOptions
    ) -> None:
        self._model, self._device = model, model.device
        self._keeps_logits = config.return_logits
        self._overlaps = bool(options.overlap)
        self._backend = backend
        self._pass = ModelPass(model, backend, options, config)
        self._last_tokens = LastTokens(config.max_num_seqs, model.device)
        self._staging = Staging(model.device)
        self._reader = Reader(model.device)
        self.graphs: CapturedSteps | None = None
        if options.graphs:
            assert isinstance(backend, BlockPool), "the options exclude it"
            captures = CudaCapture(model.device) if model.device.type == "cuda" else None
            least = LEAST_TOKENS if options.compile else 1
            decodes = decode_buckets(max(config.max_num_seqs, least), least)
            self.graphs = CapturedSteps(
                backend,
                self._pass.choose,
                self._last_tokens,
                (decodes, prompt_buckets(model, config.max_num_batched_tokens)),
                captures or call_again,
                captures.forget if captures is not None else lambda: None,
            )

    def begin_run(self) -> None:
        """Prepares for a step none of whose rows were in the step before."""
        self._pass.begin_run()
        if self.graphs is not None:
            self.graphs.follow(self._model.parameters())

    def launch(self, batch: RaggedBatch) -> Flight:
        with current(self._device):
            if self.graphs is not None and self.graphs.can_run(batch):
                outputs = self.graphs.run(batch)
            else:
                outputs = self._run(batch)
            token_ids, logits = outputs if len(outputs) > 1 else (outputs[0], None)
            if logits is not None and self._keeps_logits:
                logits = logits.clone()  # the next step may overwrite them
            if batch.scored_rows:
                return self._with_scores(batch, token_ids, logits)
            return Flight(batch.sampled, self._reader.read_later(token_ids), logits)

    def _with_scores(self, batch: RaggedBatch, token_ids: Tensor, logits: Tensor | None) -> Flight:
        """Splits the outputs: those behind sampled tokens come first, then those behind scored ones."""
        assert logits is not None, "an engine that reads its tokens late refuses such requests"
        sizes = [len(token_ids) - len(batch.scored_tokens), len(batch.scored_tokens)]
        chosen, scored = logits.split(sizes)
        return Flight(batch.sampled, self._reader.read_later(token_ids[: sizes[0]]), chosen, scored)

    def prepare(self, seq_len: int) -> None:
        """Does what the first steps would have to wait for: sizes the pool for sequences of up to
        `seq_len` tokens, and compiles and captures all steps that can be captured."""
        assert isinstance(self._backend, BlockPool), "the options exclude it"
        with current(self._device), torch.inference_mode():
            self._backend.begin_static(self._backend.padding_rows(2))
            tokens = torch.zeros(1, 2, dtype=torch.int64, device=self._device)
            self._pass.choose(tokens, tokens, tokens[0])  # shows what a block of each layer takes
            self._backend.reserve(seq_len)
            if self.graphs is not None:
                self.graphs.follow(self._model.parameters())
                self.graphs.prepare(seq_len)

    @torch.inference_mode()
    def _run(self, batch: RaggedBatch) -> Outputs:
        """Outputs behind the L sampled tokens, and the P scored ones."""
        self._backend.begin(batch)
        if self._pass.is_native and not self._overlaps:  # nothing is to be sent
            wanted = batch.sampled_tokens
            if batch.scored_rows:
                wanted = np.concatenate([wanted, batch.scored_tokens])
            return self._pass.choose_natively(batch.token_ids, wanted)
        tokens, positions, last, lanes, sampled_lanes = self._staging.send(
            batch.token_ids,
            batch.position_ids,
            np.concatenate([batch.sampled_tokens, batch.scored_tokens]),
            batch.lanes,
            batch.lanes[batch.sampled_rows],
        )
        num = batch.num_decodes  # only they can have tokens that the host does not know yet
        tokens[:num] = self._last_tokens.fill_in(tokens[:num], lanes[:num])
        # Copied, so that they begin a storage as those of a captured step do: a compiler tells offsets.
        outputs = self._pass.choose(tokens[None], positions[None].clone(), last)
        if not batch.has_drafts:  # else the host alone knows which of the tokens is the last
            self._last_tokens.put(sampled_lanes, outputs[0][: len(sampled_lanes)])
        return outputs
