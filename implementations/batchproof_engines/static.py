"""Static batching, the baseline: left-padded waves, each held until its longest request is finished.

Up to `max_num_seqs` prompts of unequal length form a wave. They are padded on the left, so that all of
them end in the same column and decode together. A finished row keeps its slot, idle, until the whole
wave is finished (the batch barrier); then the next wave starts. `max_num_batched_tokens` has no effect.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from batchproof.api import (
    CHOOSING,
    Capability,
    Completion,
    Engine,
    EngineConfig,
    Limits,
    Request,
    RowRecord,
    StepRecord,
)
from batchproof_engines.completions import with_refused
from batchproof_engines.model_support import cache_parameter, refuse_batch_dependent
from batchproof_engines.sampler import Answer, SampledRow, Sampler
from batchproof_engines.trial_batch import probe_logits

PAD_TOKEN_ID = 0  # any token of the vocabulary will do: the mask hides it


class StaticEngine:
    """Serves waves of `config.max_num_seqs` requests, first come, first served."""

    capabilities = frozenset({Capability.LOGITS, Capability.TRACING}) | CHOOSING

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        self._model = model
        self._config = config
        self._limits = Limits.of(model, config)
        self._cache_name = str(cache_parameter(model))
        self._sampler = Sampler()
        self._trace: list[StepRecord] = []

    @property
    def trace(self) -> Sequence[StepRecord]:
        return self._trace

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return with_refused(requests, self._limits.refusals(requests), self._served)

    def _served(self, requests: Sequence[Request]) -> list[Completion]:
        rows = [Answer(request, self._config.return_logits) for request in requests]
        for start in range(0, len(rows), self._config.max_num_seqs):
            end = start + self._config.max_num_seqs
            self._run_wave(rows[start:end], tuple(row.request.request_id for row in rows[end:]))
        return [row.completion() for row in rows]

    @torch.inference_mode()
    def _run_wave(self, wave: list[Answer], waiting: tuple[str, ...]) -> None:
        cache: dict[str, Any] = {}
        input_ids, attention_mask = self._left_pad([row.request.prompt_token_ids for row in wave])
        while any(row.finish_reason is None for row in wave):
            live = [row for row in wave if row.finish_reason is None]
            is_prefill = not cache
            all_logits = self._forward(input_ids, attention_mask, cache)
            if is_prefill:
                self._score_prompts(wave, all_logits)
            logits = all_logits[:, -1].float()
            rows = [SampledRow(row.request, row.token_ids) for row in wave]
            choices = self._sampler.choose(logits, rows)
            for row, choice, row_logits in zip(wave, choices, logits, strict=True):
                if row.finish_reason is None:
                    row.append(choice, row_logits)
            self._trace.append(_record(wave, live, waiting))
            # Finished rows are fed as well: their slots are idle, but the batch keeps its shape.
            fed = [[choice.token_id] for choice in choices]
            input_ids = torch.tensor(fed, device=self._model.device)
            attention_mask = torch.nn.functional.pad(attention_mask, (0, 1), value=1)

    def _left_pad(self, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
        """Returns token ids and the 0/1 attention mask, both (batch, longest), with the padding in
        front."""
        longest = max(len(prompt) for prompt in prompts)
        ids = [(PAD_TOKEN_ID,) * (longest - len(prompt)) + prompt for prompt in prompts]
        mask = [(0,) * (longest - len(prompt)) + (1,) * len(prompt) for prompt in prompts]
        device = self._model.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def _forward(self, input_ids: Tensor, attention_mask: Tensor, cache: dict[str, Any]) -> Tensor:
        """Runs the model over (batch, new) tokens and returns logits (batch, new, vocab). `cache`:
        empty before the first pass, then what the model made, by its name there."""
        output = self._model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=self._position_ids(attention_mask)[:, -input_ids.shape[1] :],
            use_cache=True,
            **cache,
        )
        cache[self._cache_name] = output[self._cache_name]
        return output.logits

    def _score_prompts(self, wave: list[Answer], logits: Tensor) -> None:
        """Notes the logprobs of prompts, from logits (batch, longest, vocab) of the padded rows."""
        for row, of_row in zip(wave, logits, strict=True):
            num_tokens = len(row.request.prompt_token_ids)
            self._sampler.score_prompt(row.prompt_logprobs, row.request, 0, of_row[-num_tokens:])

    def _position_ids(self, attention_mask: Tensor) -> Tensor:
        """Returns positions (batch, length) that count each row's own tokens, so every prompt starts at
        0."""
        # A finished row waiting for a longer neighbour may run past the end of the context.
        return (attention_mask.cumsum(dim=-1) - 1).clamp(0, self._limits.max_model_len - 1)


def _record(wave: list[Answer], live: list[Answer], waiting: tuple[str, ...]) -> StepRecord:
    """Returns the record of the step just made; `live` are the rows that were unfinished before it."""
    is_prefill = all(len(row.token_ids) == 1 for row in live)
    rows = []
    for row in live:
        num_prompt_tokens = len(row.request.prompt_token_ids)
        num_cached = 0 if is_prefill else num_prompt_tokens + len(row.token_ids) - 2
        fed = num_prompt_tokens if is_prefill else 1
        rows.append(RowRecord(row.request.request_id, num_cached, fed, is_sampled=True))
    return StepRecord(
        rows=tuple(rows),
        waiting=waiting,
        admitted=tuple(row.request.request_id for row in wave) if is_prefill else (),
        finished=tuple(row.request.request_id for row in live if row.finish_reason is not None),
        preempted=(),
    )


def static(model: PreTrainedModel, config: EngineConfig) -> Engine:
    """Raises `UnsupportedModelError` for a model that left padding would make wrong."""
    refuse_batch_dependent("static", model)
    probe_logits("static", model, StaticEngine)
    return StaticEngine(model, config)
