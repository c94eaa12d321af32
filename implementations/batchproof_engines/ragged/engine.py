"""Continuous batching as one would first write it down: no padding, no waves, no barrier.

Every step packs the tokens that are due, of all sequences in flight, into one row `(1, total_q)`: a
whole prompt (or a chunk of it) for a newcomer, one token for a running sequence. A block-diagonal
causal mask keeps the sequences apart. A sequence that is done leaves its slot at once, and the next
step fills it.

    add -> schedule -> forward -> update -> events
           (policy)    (tensors)  (policy)

Each sequence has a `DynamicCache`. A step concatenates them and scatters the new keys and values
back: easy to read, and slow, since every step copies every key. The policy is in
`ragged_scheduler.py`.

Iteration-level scheduling: Yu et al., "Orca", OSDI 2022. Preemption by recompute and block
accounting: Kwon et al., "PagedAttention", SOSP 2023.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import accumulate

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from batchproof.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    FinishReason,
    Limits,
    Request,
    RowRecord,
    StepRecord,
    TokenEvent,
    duplicate_id,
)
from batchproof.errors import UnsupportedModelError
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_engines.support import probe, refuse_unbatchable, sliding_window


class RaggedEngine:
    """First come first served over `config.max_num_seqs` slots."""

    capabilities = frozenset(Capability) - {Capability.CLOSING, Capability.PREFIX_CACHING}
    scheduler_class = Scheduler

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        self._model = model
        self._config = config
        self._window = sliding_window(model)
        self._scheduler = self.scheduler_class(Limits.of(model, config), config)
        self._caches: dict[str, DynamicCache] = {}  # of the running sequences
        self._undelivered: list[TokenEvent] = []  # of requests that ended outside a step
        self._trace: list[StepRecord] = []

    def step(self) -> list[TokenEvent]:
        events, self._undelivered = self._undelivered, []
        return events + self._run_step()[0]

    def _run_step(self) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        """One iteration. Returns its events, and the logits `(vocab,)` each token was chosen from."""
        plan = self._scheduler.schedule()
        for request_id in plan.preempted:
            del self._caches[request_id]
        if not plan.scheduled:
            return [], {}
        logits = self._forward(plan)
        events, record = self._scheduler.update(plan, logits.argmax(dim=-1).tolist())
        for request_id in self._caches.keys() & set(record.finished):
            del self._caches[request_id]
        self._trace.append(record)
        sampled = zip(plan.rows, logits, strict=True)
        return events, {row.request_id: each for row, each in sampled if row.is_sampled}

    @torch.inference_mode()
    def _forward(self, plan: SchedulerOutput) -> Tensor:
        """Feed all scheduled tokens in one pass and keep their keys and values.

        Returns the float32 logits of the last token of each row, `(rows, vocab)`.
        """
        device = self._model.device
        fed, positions = self._packed_tokens(plan)
        cache = self._gather(plan)
        output = self._model(
            input_ids=torch.tensor([fed], device=device),
            position_ids=torch.tensor([positions], device=device),
            attention_mask=self._additive_mask(plan.rows),
            past_key_values=cache,
            use_cache=True,
        )
        self._scatter(plan, cache)
        last = torch.tensor([row.query_len for row in plan.rows], device=device).cumsum(0) - 1
        return output.logits[0, last].float()

    def _packed_tokens(self, plan: SchedulerOutput) -> tuple[list[int], list[int]]:
        """The token ids to feed and their positions, row after row."""
        fed: list[int] = []
        positions: list[int] = []
        for (sequence, num_new), row in zip(plan.scheduled, plan.rows, strict=True):
            span = range(row.context_len, row.context_len + num_new)
            fed += (sequence.token_ids[position] for position in span)
            positions += span
        return fed, positions

    def _gather(self, plan: SchedulerOutput) -> DynamicCache:
        """All cached keys and values, row after row: `(1, heads, total_context, head_size)`."""
        caches = [self._caches[row.request_id] for row in plan.rows if row.context_len]
        layers = zip(*(cache.layers for cache in caches), strict=True)
        return DynamicCache(
            [
                (
                    torch.cat([x.keys for x in each], dim=2),
                    torch.cat([x.values for x in each], dim=2),
                )
                for each in layers
            ]
        )

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        """Append the new keys and values, which stand behind all contexts, to their owners."""
        lens = [row.query_len for row in plan.rows]
        for index, layer in enumerate(cache.layers):
            assert isinstance(layer, DynamicLayer), "the cache was made by _gather"
            assert layer.keys is not None, "the forward pass filled it"
            assert layer.values is not None, "the forward pass filled it"
            keys = layer.keys[:, :, -sum(lens) :].split(lens, dim=2)
            values = layer.values[:, :, -sum(lens) :].split(lens, dim=2)
            for row, k, v in zip(plan.rows, keys, values, strict=True):
                self._caches.setdefault(row.request_id, DynamicCache()).update(k, v, index)

    def attention_mask(self, rows: Seq[RowRecord]) -> Tensor:
        return self._mask(rows, self._window)

    def _mask(self, rows: Seq[RowRecord], window: int | None) -> Tensor:
        return packed_mask(rows, window, self._model.device)

    def _additive_mask(self, rows: Seq[RowRecord]) -> Tensor | dict[str, Tensor]:
        """The mask as transformers takes it: 0 or the dtype's minimum, `(1, 1, total_q, total_kv)`;
        one per layer type where a model mixes full and sliding attention."""

        def additive(mask: Tensor) -> Tensor:
            dtype = self._model.dtype
            bias = torch.zeros(mask.shape, dtype=dtype, device=self._model.device)
            return bias.masked_fill_(~mask.to(bias.device), torch.finfo(dtype).min)[None, None]

        kinds = set(getattr(self._model.config.get_text_config(), "layer_types", None) or ())
        if len(kinds) < 2:
            return additive(self._mask(rows, self._window))
        return {
            kind: additive(self._mask(rows, self._window if "sliding" in kind else None))
            for kind in kinds
        }

    def add(self, request: Request) -> None:
        if self._scheduler.is_live(request.request_id):
            raise ValueError(duplicate_id(request.request_id))
        refusal = self._scheduler.refusal(request)
        if refusal is None:
            self._scheduler.add(request)
        else:
            self._undelivered.append(TokenEvent.refused(request.request_id, refusal))

    def abort(self, request_id: str) -> None:
        if self._scheduler.abort(request_id):
            self._caches.pop(request_id, None)
            self._undelivered.append(TokenEvent(request_id, None, FinishReason.ABORTED))

    @property
    def has_unfinished(self) -> bool:
        return bool(self._scheduler.waiting or self._scheduler.running or self._undelivered)

    @property
    def trace(self) -> Seq[StepRecord]:
        return self._trace

    def generate(self, requests: Seq[Request]) -> list[Completion]:
        self._require_idle()
        answers: list[Sequence | str] = []  # a sequence, or why it was refused
        for request in requests:
            refusal = self._scheduler.refusal(request)
            answers.append(refusal or self._scheduler.add(request))
        logits: dict[str, list[Tensor]] = {request.request_id: [] for request in requests}
        while self.has_unfinished:
            for request_id, row_logits in self._run_step()[1].items():
                if self._config.return_logits:
                    logits[request_id].append(row_logits)
        return [
            Completion.refused(request.request_id, answer)
            if isinstance(answer, str)
            else self._completion(answer, logits[request.request_id])
            for request, answer in zip(requests, answers, strict=True)
        ]

    def _require_idle(self) -> None:
        if self.has_unfinished:
            raise RuntimeError("generate was called while requests given by add are unfinished")

    def _completion(self, sequence: Sequence, logits: list[Tensor]) -> Completion:
        assert sequence.finish_reason is not None, "generate runs until everything is finished"
        return Completion(
            sequence.request_id,
            tuple(sequence.output_token_ids),
            sequence.finish_reason,
            logits=torch.stack(logits) if logits else None,
        )


def packed_mask(rows: Seq[RowRecord], window: int | None, device: torch.device | str = "cpu") -> Tensor:
    """Who may attend to whom in one packed step: bool `(total_q, total_kv)`, made on the device.

    Keys stand as the concatenation leaves them: all contexts, then all fed tokens. A query sees the
    keys of its own sequence at positions up to its own, at most `window` of them.
    """
    context_lens = [row.context_len for row in rows]
    row_c, pos_c = _places([0] * len(rows), context_lens, device)
    row_q, pos_q = _places(context_lens, [row.query_len for row in rows], device)
    row_k, pos_k = torch.cat([row_c, row_q]), torch.cat([pos_c, pos_q])
    # In place: few tensors are as large as the mask.
    mask = (row_k == row_q[:, None]).logical_and_(pos_k <= pos_q[:, None])
    return mask if window is None else mask.logical_and_(pos_k > pos_q[:, None] - window)


def _places(starts: Seq[int], lens: Seq[int], device: torch.device | str) -> tuple[Tensor, Tensor]:
    """The row and the position of each token, `(sum(lens),)` each: row i has `lens[i]` tokens from
    position `starts[i]` on, and they stand behind those of the rows before it."""
    num_tokens = sum(lens)
    shifts = [start - num for start, num in zip(starts, accumulate(lens, initial=0), strict=False)]
    row_ids, repeats = torch.arange(len(lens), device=device), torch.tensor(lens, device=device)
    # Told how many, a device need not be waited for.
    row = row_ids.repeat_interleave(repeats, output_size=num_tokens)
    return row, torch.arange(num_tokens, device=device) + torch.tensor(shifts, device=device)[row]


def ragged(model: PreTrainedModel, config: EngineConfig) -> Engine:
    """Raises `UnsupportedModelError` for models whose attention does not take our mask."""
    refuse_unbatchable("ragged", model)
    implementation = model.config._attn_implementation
    if implementation not in ("eager", "sdpa"):
        raise UnsupportedModelError(
            f"engine 'ragged' needs attention 'eager' or 'sdpa', which take a 4-D mask; the model "
            f"uses {implementation!r}"
        )
    probe("ragged", model, RaggedEngine)
    return RaggedEngine(model, config)
