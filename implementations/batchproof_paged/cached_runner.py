"""Runs a step as several passes, for models that cannot take all its tokens as one packed row.

Decodes are one pass (B, 1), and prompts a pass (B, n) for each length. Every sequence has a row in a
cache of transformers, which carries its recurrent state from pass to pass (`row_caches`). There are two
ways to attend:

* `stacked`: our attention, over keys and values in our blocks. The cache holds states alone, whose
  shapes do not depend on lengths, so that all decodes are one group.
* `separate`: the model's own attention, over keys and values in its cache. Each sequence is fed by
  itself: some models are wrong with two, even of one length.
"""

import inspect
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import EngineConfig
from batchproof_engines.model_support import cache_parameter, counts_from_zero
from batchproof_paged.attention import Attached, Backend, passing_to
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.options import STACKED, PagedOptions
from batchproof_paged.row_caches import OurKeys, RowCaches, states_beside_our_keys
from batchproof_paged.rows import Rows, Scheduled
from batchproof_paged.runner import Flight
from batchproof_paged.staging import current


class CachedRunner:
    """Has the methods of `ModelRunner` that the engine calls."""

    def __init__(
        self, model: PreTrainedModel, backend: Backend, _config: EngineConfig, options: PagedOptions
    ) -> None:
        self._model = model
        self._device = model.device
        self._backend = backend
        self._has_our_keys = options.feed == STACKED
        self._one_by_one = options.one_by_one
        self._attached: AbstractContextManager[None] = nullcontext()
        if self._has_our_keys:
            self._attached = Attached(model)
        self._gives_positions = counts_from_zero(model)
        taken = inspect.signature(model.forward).parameters
        self._fixed = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}
        self._cache_name = str(cache_parameter(model))
        self._caches = RowCaches()
        self._scored: dict[str, list[Tensor]] = {}  # logits of prompts in this step, by request

    def begin_run(self) -> None:
        """Has nothing to prepare for a step none of whose rows were in the step before."""

    def prepare(self, seq_len: int) -> None:
        """Is never called: the options exclude it."""
        raise NotImplementedError(f"for {seq_len} tokens")

    def launch(self, batch: RaggedBatch) -> Flight:
        self._scored.clear()
        self._caches.forget_ended()
        last: dict[str, Tensor] = {}
        with current(self._device), torch.inference_mode():
            for rows in self._rounds(batch.scheduled):
                for group in map(RaggedBatch.of, self._groups(rows)):
                    names = [sequence.request_id for sequence in group.scheduled.sequences]
                    last |= zip(names, self._run(group), strict=True)
            sampled, scored = batch.sampled, self._scored_tokens(batch)
            if not sampled:
                return Flight(sampled, list, None, scored)
            logits = torch.stack([last[each.request_id] for each in sampled.sequences])
            token_ids = logits.argmax(dim=-1)
        return Flight(sampled, token_ids.tolist, logits, scored)

    def _scored_tokens(self, batch: RaggedBatch) -> Tensor | None:
        sequences = batch.scheduled.picked(batch.scored_rows).sequences
        found = [each for sequence in sequences for each in self._scored[sequence.request_id]]
        return torch.cat(found) if found else None

    def _rounds(self, rows: Rows) -> Iterator[Rows]:
        """Yields what to feed, one round after another: all at once, but for what a model can only
        continue token by token."""
        if rows.are_decodes or not self._one_by_one:
            yield rows
            return
        pieces = [list(_single_tokens(row)) for row in rows]
        for index in range(max(map(len, pieces))):
            yield Rows.of([each[index] for each in pieces if index < len(each)])

    def _groups(self, rows: Rows) -> list[Rows]:
        groups: dict[Hashable, list[int]] = {}
        for place, row in enumerate(rows):
            groups.setdefault(self._kind(row), []).append(place)
        return [rows.picked(places) for places in groups.values()]

    def _kind(self, row: Scheduled) -> Hashable:
        if not self._has_our_keys:
            return row.sequence.lane
        return row.query_len, bool(row.context_len)

    def _before(self, rows: Rows) -> Any:
        """Returns the cache that a pass starts from; None at the beginning of prompts."""
        return self._caches.gathered(rows) if rows.context_lens[0] else None

    def _run(self, batch: RaggedBatch) -> Tensor:
        """Feeds B rows of n tokens each; returns the logits (B, vocab) of their last tokens."""
        rows = batch.scheduled
        shape = len(rows), rows.query_lens[0]
        tokens = torch.from_numpy(batch.token_ids).to(self._device).view(shape)
        cache = self._before(rows)
        given: dict[str, Any] = {"input_ids": tokens, "use_cache": True}
        if not batch.scored_rows:
            given |= self._fixed
        if self._gives_positions:
            positions = torch.from_numpy(batch.position_ids).to(self._device)
            given["position_ids"] = positions.view(shape)
        if self._has_our_keys:
            cache = cache if cache is not None else states_beside_our_keys(self._model.config)
            for layer in cache.layers:
                if isinstance(layer, OurKeys):
                    layer.num_tokens = max(rows.context_lens)
            self._backend.begin(batch)
        if cache is not None:
            given[self._cache_name] = cache
        with passing_to(self._backend), self._attached:
            output = self._model(**given)
        self._caches.keep(rows, output[self._cache_name])
        logits: Tensor = output.logits
        for row in batch.scored_rows:
            self._scored.setdefault(rows.sequences[row].request_id, []).append(logits[row])
        return logits[:, -1]


def _single_tokens(row: Scheduled) -> Iterator[Scheduled]:
    """Yields a first chunk as it is, and any other token by token."""
    sequence, context_len, query_len, is_sampled = row
    if context_len == 0:
        yield row
        return
    for place in range(query_len):
        is_last = place == query_len - 1
        yield Scheduled(sequence, context_len + place, 1, is_sampled and is_last)
