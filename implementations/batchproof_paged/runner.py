"""From a plan to the tokens it chooses: arrays go out, a pass is launched, tokens come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import EngineConfig
from batchproof_paged.attention import Backend
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.blocks import BlockPool
from batchproof_paged.compiled import least_tokens
from batchproof_paged.graphs import Buckets, CapturedSteps, CudaCapture, LastTokens, call_again
from batchproof_paged.model_pass import ModelPass, Outputs
from batchproof_paged.options import PagedOptions
from batchproof_paged.rows import Rows
from batchproof_paged.sequence import Sequence
from batchproof_paged.staging import Reader, Staging, current


@dataclass(frozen=True, slots=True)
class Flight:
    """A step given to the device; its tokens may not be there yet."""

    sampled: Rows  # S, the rows a token is chosen for
    land: Callable[[], list[int]]  # waits for the S tokens, or L, as `RaggedBatch.sampled_tokens`
    logits: Tensor | None  # (S or L, vocab) the model's, but for an engine that reads tokens late
    scored: Tensor | None = None  # (P, vocab) behind `RaggedBatch.scored_tokens`, if there are any


class ModelRunner:
    """Feeds the model, and remembers on the device what it chose last."""

    def __init__(
        self, model: PreTrainedModel, backend: Backend, config: EngineConfig, options: PagedOptions
    ) -> None:
        self._model, self._device = model, model.device
        self._keeps_logits = config.return_logits
        self._backend = backend
        self._pass = ModelPass(model, backend, options, config)
        self._last_tokens = LastTokens(config.max_num_seqs, model.device)
        self._staging = Staging(model.device)
        self._reader = Reader(model.device)
        self._graphs: CapturedSteps | None = None
        if options.graphs:
            assert isinstance(backend, BlockPool), "the options exclude it"
            captures = CudaCapture(model.device) if model.device.type == "cuda" else None
            self._graphs = CapturedSteps(
                backend,
                self._pass.choose,
                self._last_tokens,
                config.max_num_seqs,
                Buckets.of(model, config, least_tokens(model) if options.compile else 1),
                captures or call_again,
                captures.forget if captures is not None else lambda: None,
            )

    def begin_run(self) -> None:
        """Prepares for a step none of whose rows were in the step before."""
        self._pass.begin_run()
        if self._graphs is not None:
            self._graphs.follow(self._model.parameters())

    def num_resumable(self, sequence: Sequence, blocks: tuple[int, ...]) -> int:  # noqa: ARG002
        """Behind how many of its first blocks, whose keys are known, a sequence can start: all."""
        return len(blocks)

    def launch(self, batch: RaggedBatch) -> Flight:
        """One forward pass."""
        with current(self._device):
            self._pass.follow()
            if self._graphs is not None and self._graphs.can_run(batch):
                outputs = self._graphs.run(batch)
            else:
                outputs = self._run(batch)
            if batch.scored_rows:
                return self._with_scores(batch, outputs)
            # The next captured step overwrites the logits.
            logits = outputs[1] if len(outputs) > 1 else None
            if logits is not None and self._keeps_logits:
                logits = logits.clone()
            return Flight(batch.sampled, self._reader.read_later(outputs[0]), logits)

    def _with_scores(self, batch: RaggedBatch, outputs: Outputs) -> Flight:
        """Tells the outputs behind sampled tokens, which come first, from those behind scored ones."""
        token_ids, logits = outputs
        sizes = [len(token_ids) - len(batch.scored_tokens), len(batch.scored_tokens)]
        chosen, scored = logits.split(sizes)
        return Flight(batch.sampled, self._reader.read_later(token_ids[: sizes[0]]), chosen, scored)

    def prepare(self, seq_len: int) -> None:
        """Do now what the first steps would have to wait for: size the pool for sequences of up to
        `seq_len` tokens, and compile and capture all steps that can be captured."""
        assert isinstance(self._backend, BlockPool), "the options exclude it"
        with current(self._device), torch.inference_mode():
            self._backend.begin_static(self._backend.padding_rows(2))
            tokens = torch.zeros(1, 2, dtype=torch.int64, device=self._device)
            self._pass.choose(tokens, tokens, tokens[0])  # shows what a block of each layer takes
            self._backend.reserve(seq_len)
            if self._graphs is not None:
                self._graphs.follow(self._model.parameters())
                self._graphs.prepare(seq_len)

    @torch.inference_mode()
    def _run(self, batch: RaggedBatch) -> Outputs:
        """Outputs behind the L sampled tokens, and the P scored ones."""
        self._backend.begin(batch)
        tokens, positions, last, lanes, sampled_lanes = self._staging.send(
            batch.token_ids,
            batch.position_ids,
            np.concatenate([batch.sampled_tokens, batch.scored_tokens]),
            batch.lanes,
            batch.lanes[batch.sampled_rows],
        )
        num = batch.num_decodes  # only they can have tokens that the host does not know yet
        tokens[:num] = self._last_tokens.fill_in(tokens[:num], lanes[:num])
        outputs = self._pass.choose(tokens[None], positions[None], last)
        if not batch.has_drafts:  # else the host alone knows which of the tokens is the last
            self._last_tokens.put(sampled_lanes, outputs[0][: len(sampled_lanes)])
        return outputs
