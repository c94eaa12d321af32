"""Continuous batching in its simplest form: no padding, no waves, no barrier.

Every step packs the tokens that are due, of all running sequences, into one row `(1, total_q)`: a
whole prompt (or a chunk of it) for a newcomer, one token for a sequence that is decoding. A
block-diagonal causal mask keeps the sequences apart. A finished sequence leaves its slot at once, and
the next step fills it.

    add -> schedule -> forward -> update -> events
           (policy)    (tensors)  (policy)

Each sequence has a `DynamicCache`. A step concatenates them and scatters the new keys and values
back: easy to read, but slow, because every step copies every key. The policy is in `scheduler.py`.

Iteration-level scheduling: Yu et al., "Orca", OSDI 2022. Preemption by recompute and block
accounting: Kwon et al., "PagedAttention", SOSP 2023.
"""

from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import Any

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
    TokenLogprobs,
    duplicate_id,
)
from batchproof_engines.grammars import LACKING, Grammars
from batchproof_engines.lora import Adapters, refusal_of
from batchproof_engines.model_support import refuse_other_attention, refuse_unbatchable, sliding_window
from batchproof_engines.pausing import Pausable
from batchproof_engines.ragged.scheduler import Scheduler, SchedulerOutput, Sequence
from batchproof_engines.sampler import Choice, SampledRow, Sampler, completed
from batchproof_engines.trial_batch import probe_logits
from batchproof_engines.weights import Weights


class RaggedEngine(Pausable):
    """Serves requests first come, first served, in `config.max_num_seqs` slots."""

    capabilities = (
        frozenset(Capability)
        - {
            Capability.CLOSING,
            Capability.PREFIX_CACHING,
            Capability.SPECULATION,
            Capability.EXACT_DRAFTS,
            Capability.INVARIANCE,
        }
        - LACKING
    )
    scheduler_class = Scheduler
    sampler_class = Sampler
    adapters_class = Adapters
    weights_class = Weights
    grammars_class = Grammars

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        self._base = self._model = model  # without adapters, and with them
        self._weights: Weights | None = None  # from the first update on
        self._adapters: Adapters | None = None  # from the first one on
        self._config = config
        self._window = sliding_window(model)
        self._scheduler = self.scheduler_class(Limits.of(model, config), config)
        self._sampler = self.sampler_class()
        self._grammars = self.grammars_class(Limits.of(model, config).vocab_size)
        self._logprobs: dict[str, TokenLogprobs] = {}  # of the tokens of this step, by request
        self._caches: dict[str, DynamicCache] = {}  # of the running sequences
        self._undelivered: list[TokenEvent] = []  # events of requests that ended outside a step
        self._trace: list[StepRecord] = []

    def step(self) -> list[TokenEvent]:
        """Runs one iteration and returns its events, after those of requests that ended since the last
        one."""
        events, self._undelivered = self._undelivered, []
        return events + self._run_step()[0] if self.is_serving else events

    def _run_step(self) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        """Runs one iteration. Returns its events, and by request the logits (num_tokens, vocab) its
        tokens were chosen from."""
        plan = self._scheduler.schedule()
        for request_id in plan.preempted:
            self._caches.pop(request_id, None)
        return self._carry_out(plan) if plan.scheduled else ([], {})

    def _carry_out(self, plan: SchedulerOutput) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        logits = self._forward(plan)
        return self._settle(plan, logits, self._choices(plan, logits))

    def _settle(
        self, plan: SchedulerOutput, logits: Tensor, choices: Seq[Choice]
    ) -> tuple[list[TokenEvent], dict[str, Tensor]]:
        """Records the outcome of a step: what was chosen for each row, from its logits (rows,
        vocab)."""
        self._note_logprobs(plan, choices)
        events, record = self._scheduler.update(plan, [choice.token_id for choice in choices])
        events = [each._replace(logprobs=self._logprobs.pop(each.request_id, None)) for each in events]
        for request_id in self._caches.keys() & set(record.finished):
            del self._caches[request_id]
        self._trace.append(record)
        sampled = zip(plan.rows, logits, strict=True)
        return events, {row.request_id: each[None] for row, each in sampled if row.is_sampled}

    def _choices(self, plan: SchedulerOutput, logits: Tensor) -> list[Choice]:
        sequences = [sequence for sequence, _ in plan.scheduled]
        rows = [SampledRow(each.request, each.output_token_ids, each.matcher) for each in sequences]
        return self._sampler.choose(logits, rows)

    def _note_logprobs(self, plan: SchedulerOutput, choices: Seq[Choice]) -> None:
        """Keeps the logprobs of the rows that are sampled."""
        for (sequence, _), choice, row in zip(plan.scheduled, choices, plan.rows, strict=True):
            if row.is_sampled and choice.logprobs is not None:
                sequence.logprobs.append(choice.logprobs)
                self._logprobs[row.request_id] = choice.logprobs

    @torch.inference_mode()
    def _forward(self, plan: SchedulerOutput) -> Tensor:
        """Feeds all scheduled tokens; returns the float32 logits (rows, vocab) of the last of each
        row."""
        packed = self._packed_logits(plan)
        self._score_prompts(plan, packed)
        return packed[_last_places(plan)].float()

    def _packed_logits(self, plan: SchedulerOutput) -> Tensor:
        """Feeds all scheduled tokens in one pass, or each row alone if a logit is not finite. Stores
        their keys and values; returns logits (total_q, vocab)."""
        device = self._model.device
        if self._adapters is not None:
            self._adapters.begin(self._adapted_rows(plan))
        fed, positions = self._packed_tokens(plan)
        cache = self._gather(plan)
        logits = self._logits(
            plan,
            input_ids=torch.tensor([fed], device=device),
            position_ids=torch.tensor([positions], device=device),
            attention_mask=self._additive_mask(plan.rows),
            past_key_values=cache,
            use_cache=True,
        )
        if len(plan.rows) > 1 and self._is_contagious(logits[_last_places(plan)]):
            # As planned here: a subclass that adds rows has added them.
            return torch.cat([RaggedEngine._packed_logits(self, row) for row in plan.row_by_row()])
        self._scatter(plan, cache)
        return logits

    def _adapted_rows(self, plan: SchedulerOutput) -> list[tuple[str | None, int]]:
        return [(each.request.adapter, num) for each, num in plan.scheduled]

    def _logits(self, plan: SchedulerOutput, **fed: Any) -> Tensor:  # noqa: ARG002
        """Returns what the model makes of a step's tokens: logits (total_q, vocab)."""
        return self._model(**fed).logits[0]

    def _score_prompts(self, plan: SchedulerOutput, logits: Tensor) -> None:
        """Keeps the logprobs of prompt tokens behind those fed, from the logits (total_q, vocab) of
        the latter."""
        of_rows = logits.split([row.query_len for row in plan.rows])
        for (sequence, _), row, given in zip(plan.scheduled, plan.rows, of_rows, strict=True):
            known, request = sequence.prompt_logprobs, sequence.request
            self._sampler.score_prompt(known, request, row.context_len, given)

    def _is_contagious(self, logits: Tensor) -> bool:
        """Returns whether something is not finite. The weight of a masked key is 0, but 0 * NaN is NaN:
        one row reaches all others."""
        return not bool(logits.isfinite().all())

    def _packed_tokens(self, plan: SchedulerOutput) -> tuple[list[int], list[int]]:
        """Returns the token ids to feed and their positions, row after row."""
        fed: list[int] = []
        positions: list[int] = []
        for (sequence, _), row in zip(plan.scheduled, plan.rows, strict=True):
            tokens, span = self._row_tokens(sequence, row)
            fed += tokens
            positions += span
        return fed, positions

    def _row_tokens(self, sequence: Sequence, row: RowRecord) -> tuple[list[int], range]:
        """Returns the same of one row."""
        span = range(row.context_len, row.context_len + row.query_len)
        return [sequence.token_ids[position] for position in span], span

    def _gather(self, plan: SchedulerOutput) -> DynamicCache:
        """Returns all cached keys and values, row after row: `(1, heads, total_context, head_size)`."""
        caches = [self._caches[row.request_id] for row in plan.rows if row.context_len]
        layers = zip(*(cache.layers for cache in caches), strict=True)
        return DynamicCache(
            [
                (torch.cat([x.keys for x in each], dim=2), torch.cat([x.values for x in each], dim=2))
                for each in layers
            ]
        )

    def _scatter(self, plan: SchedulerOutput, cache: DynamicCache) -> None:
        """Appends the new keys and values, which stand behind all contexts, to their sequences'
        caches."""
        lens = [row.query_len for row in plan.rows]
        for index, layer in enumerate(cache.layers):
            keys, values = (
                each[:, :, -sum(lens) :].split(lens, dim=2) for each in keys_and_values(layer)
            )
            for row, k, v in zip(plan.rows, keys, values, strict=True):
                self._caches.setdefault(row.request_id, DynamicCache()).update(k, v, index)

    def attention_mask(self, rows: Seq[RowRecord]) -> Tensor:
        """Returns the mask of a step with these rows, bool (total_q, total_kv); see `packed_mask`."""
        return self._mask(rows, self._window)

    def _mask(self, rows: Seq[RowRecord], window: int | None) -> Tensor:
        return packed_mask(rows, window, self._model.device)

    def _additive_mask(self, rows: Seq[RowRecord]) -> Tensor | dict[str, Tensor]:
        """Returns the mask as transformers takes it: 0 or the dtype's minimum, `(1, 1, total_q,
        total_kv)`.

        A model that mixes full and sliding attention gets one mask per layer type.
        """

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
        refusal = self._refusal(request)
        if refusal is None:
            self._enqueue(request)
        else:
            self._undelivered.append(TokenEvent.refused(request.request_id, refusal))

    def _refusal(self, request: Request) -> str | None:
        refusal = refusal_of(request.adapter, self._adapters) or self._scheduler.refusal(request)
        return refusal or self._grammars.refusal(request)

    def _enqueue(self, request: Request) -> Sequence:
        sequence = self._scheduler.add(request)
        sequence.matcher = self._grammars.matcher(request)
        if self._adapters is not None:
            sequence.root = self._adapters.root(request.adapter)
        return sequence

    def load_adapter(self, name: str, path: str) -> None:
        if self._adapters is None:
            self._adapters = self.adapters_class(self._base)
            self._model = self._adapters.model
        self._adapters.load(name, path)

    def unload_adapter(self, name: str) -> None:
        if self._adapters is not None:
            self._adapters.unload(name)

    def sleep(self) -> None:
        """Gives back all caches: requests are computed again afterwards."""
        self.restart()
        self._is_asleep = True

    def clear_cache(self) -> None:
        """Has nothing to forget: no request begins behind a prefix."""

    def update_weights(self, model: PreTrainedModel, names: Seq[str] | None = None) -> None:
        """Takes over parameters, all or those of these names, and computes all requests again. Raises
        `ValueError` for a name that is none."""
        self.restart()
        if self._weights is None:
            self._weights = self.weights_class(self._base)
            self._base = self._model = self._weights.model
            if self._adapters is not None:
                self._adapters.rebase(self._base)
                self._model = self._adapters.model
        self._weights.update(model, names)

    def restart(self) -> None:
        """Takes all requests out of their slots, and forgets what is cached."""
        self._scheduler.preempt_all()
        running = {sequence.request_id for sequence in self._scheduler.running}
        self._caches = {name: kept for name, kept in self._caches.items() if name in running}

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
            refusal = self._refusal(request)
            answers.append(refusal or self._enqueue(request))
        logits: dict[str, list[Tensor]] = {request.request_id: [] for request in requests}
        while self.has_unfinished:
            for request_id, row_logits in self._run_step()[1].items():
                if self._config.return_logits:
                    logits[request_id] += row_logits
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
        return completed(sequence, sequence.output_token_ids, logits)


def keys_and_values(layer: object) -> tuple[Tensor, Tensor]:
    """Returns the keys and values of a filled layer, themselves: `(1, heads, tokens, head_size)`."""
    assert isinstance(layer, DynamicLayer), "these engines make no other layers"
    assert layer.keys is not None, "a forward pass filled it"
    assert layer.values is not None, "a forward pass filled it"
    return layer.keys, layer.values


def _last_places(plan: SchedulerOutput) -> list[int]:
    return [end - 1 for end in accumulate(row.query_len for row in plan.rows)]


def packed_mask(rows: Seq[RowRecord], window: int | None, device: torch.device | str = "cpu") -> Tensor:
    """Returns which keys each query of a packed step may see: bool `(total_q, total_kv)`, made on the
    device.

    Keys stand as the concatenation leaves them: all contexts, then all fed tokens. A query sees the
    keys of its own sequence at positions up to its own, at most `window` of them.
    """
    row_q, pos_q, row_k, pos_k = packed_places(rows, device)
    # In place: few tensors are as large as the mask.
    mask = (row_k == row_q).logical_and_(pos_k <= pos_q)
    return mask if window is None else mask.logical_and_(pos_k > pos_q - window)


def packed_places(
    rows: Seq[RowRecord], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns row and position of each query `(total_q, 1)`, then of each key `(total_kv,)`."""
    context_lens = [row.context_len for row in rows]
    row_c, pos_c = _places([0] * len(rows), context_lens, device)
    row_q, pos_q = _places(context_lens, [row.query_len for row in rows], device)
    return row_q[:, None], pos_q[:, None], torch.cat([row_c, row_q]), torch.cat([pos_c, pos_q])


def _places(starts: Seq[int], lens: Seq[int], device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Returns the row and the position of each token, both (sum(lens),).

    Row i has `lens[i]` tokens, starting at position `starts[i]`; they stand behind those of earlier
    rows.
    """
    num_tokens = sum(lens)
    shifts = [start - num for start, num in zip(starts, accumulate(lens, initial=0), strict=False)]
    row_ids, repeats = torch.arange(len(lens), device=device), torch.tensor(lens, device=device)
    # With `output_size` given, the call does not wait for the device.
    row = row_ids.repeat_interleave(repeats, output_size=num_tokens)
    return row, torch.arange(num_tokens, device=device) + torch.tensor(shifts, device=device)[row]


def ragged(model: PreTrainedModel, config: EngineConfig) -> Engine:
    """Builds a ragged engine. Raises `UnsupportedModelError` for a model whose attention ignores our
    mask."""
    refuse_unbatchable("ragged", model)
    refuse_other_attention("ragged", model)
    probe_logits("ragged", model, RaggedEngine)
    return RaggedEngine(model, config)
