"""transformers' `generate` with a static cache, its decode step compiled: a peer that needs no wheel.

Up to `max_num_seqs` requests, first come, first served, are padded on the left and decoded until each
has its EOS or its cap. transformers runs prompts as they are, and on CUDA compiles the step of one
token into a CUDA graph (`mode="reduce-overhead"`). A compiled step is for one shape and one cache, so

* one cache serves all batches of an engine: for a new one for each call, which is `generate`'s own
  way, the graph would be recorded again wherever it lies elsewhere;
* a compiled batch has `max_num_seqs` rows; what fills those without a request is thrown away;
* the cache holds `max_model_len` tokens or the most that a batch has needed, rounded up.

With `max_model_len` it compiles when it is built, otherwise in its first batches.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import CompileConfig, GenerationConfig, PreTrainedModel, StaticCache

from batchproof.api import Capability, Completion, Engine, EngineConfig, FinishReason, Limits, Request
from batchproof_engines.model_support import refuse_batch_dependent
from batchproof_engines.trial_batch import probe_logits

NAME = "generate-static"
CACHE_STEP = 256  # tokens
Batch = Sequence[Request]


class GenerateEngine:
    """Serves batches by `model.generate`; without a `compiler` nothing is compiled."""

    capabilities = frozenset({Capability.LOGITS})

    def __init__(self, model: PreTrainedModel, config: EngineConfig, compiler: str | None) -> None:
        self._model = model
        self._config = config
        self._compiler = compiler
        self._limits = Limits.of(model, config)
        self._num_positions = Limits.of(model, EngineConfig()).max_model_len
        self._cache: StaticCache | None = None
        self._sizes = 0, config.max_model_len or 0  # of the cache: rows, tokens
        if compiler and config.max_model_len:  # padded like most, and long enough to be captured
            self._serve([Request("trial", (0, 0), min(4, config.max_model_len))])

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Returns one completion per request, in order; bad requests are refused and join no batch."""
        refusals = [
            refusal or (None if r.sampling is None else r.sampling.beyond(frozenset()))
            for r, refusal in zip(requests, self._limits.refusals(requests), strict=True)
        ]
        good = [r for r, refusal in zip(requests, refusals, strict=True) if refusal is None]
        served = (completion for batch in self._batches(good) for completion in self._serve(batch))
        return [
            next(served) if refusal is None else Completion.refused(r.request_id, refusal)
            for r, refusal in zip(requests, refusals, strict=True)
        ]

    def _batches(self, requests: Batch) -> Iterator[list[Request]]:
        """Yields batches; all positions of a batch, up to its longest prompt and its largest cap, are
        ones that the model has."""
        batch: list[Request] = []
        for request in requests:
            grown = [*batch, request]
            if len(grown) > self._config.max_num_seqs or sum(_sizes(grown)) > self._num_positions:
                yield batch
                grown = [request]
            batch = grown
        if batch:
            yield batch

    @torch.inference_mode(mode=False)  # else the next call, outside of it, could not write the cache
    def _serve(self, batch: Batch) -> list[Completion]:
        width, cap = _sizes(batch)
        num_rows = self._config.max_num_seqs if self._compiler else len(batch)
        prompts = [r.prompt_token_ids for r in batch] + [(0,)] * (num_rows - len(batch))
        device = self._model.device
        with (
            patch.dict(os.environ),  # where it compiles, it turns the parallelism of tokenizers off
            patch.object(self._model, "generation_config", self._greedy(cap)),  # whatever its own says
        ):
            output = self._model.generate(
                torch.tensor([(0,) * (width - len(p)) + tuple(p) for p in prompts], device=device),
                attention_mask=torch.tensor(
                    [(0,) * (width - len(p)) + (1,) * len(p) for p in prompts], device=device
                ),
                past_key_values=self._empty_cache(num_rows, width + cap),
                stopping_criteria=[_ended(batch, width, num_rows, device)],
            )
        rows = output.sequences[:, width:].tolist()
        logits = zip(*output.logits, strict=True) if output.logits else [None] * num_rows
        each = zip(batch, rows, logits, strict=False)  # there are rows without a request
        return [_completion(*of_row) for of_row in each]

    def _greedy(self, cap: int) -> GenerationConfig:
        compiling = CompileConfig(backend=self._compiler or "inductor")
        compiling._compile_all_devices = True  # by itself it leaves a CPU out
        return GenerationConfig(
            max_new_tokens=cap,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=self._config.return_logits,
            compile_config=compiling,
            disable_compile=self._compiler is None,
        )

    def _empty_cache(self, num_rows: int, num_tokens: int) -> StaticCache:
        """Returns the cache of the last batch, emptied, or a new one if that is too small."""
        rows, tokens = self._sizes
        if self._cache is not None and rows == num_rows and tokens >= num_tokens:
            self._cache.reset()
            return self._cache
        self._sizes = num_rows, -(-max(tokens, num_tokens) // CACHE_STEP) * CACHE_STEP
        self._cache = None  # its memory is free for the new one
        config = self._model.config.get_text_config(decoder=True)
        self._cache = StaticCache(config=config, max_cache_len=self._sizes[1])
        return self._cache


def _sizes(batch: Batch) -> tuple[int, int]:
    """Returns the longest prompt and the largest cap, in tokens."""
    return max(len(r.prompt_token_ids) for r in batch), max(r.max_new_tokens for r in batch)


def _ended(batch: Batch, width: int, num_rows: int, device: torch.device) -> Callable[..., Tensor]:
    """Returns the criterion for each row of `generate`, whose own caps and EOS ids are for all rows.
    A row without a request has ended."""
    idle = num_rows - len(batch)
    most = max(1, *(len(request.eos_token_ids) for request in batch))
    eos_ids = [[*r.eos_token_ids, *[-1] * (most - len(r.eos_token_ids))] for r in batch]
    eos = torch.tensor(eos_ids + [[-1] * most] * idle, device=device)
    ends = torch.tensor([width + r.max_new_tokens for r in batch] + [0] * idle, device=device)

    def criterion(tokens: Tensor, _scores: Any, **_more: Any) -> Tensor:
        return (tokens[:, -1:] == eos).any(dim=1) | (ends <= tokens.shape[1])

    return criterion


def _completion(request: Request, row: list[int], logits: tuple[Tensor, ...] | None) -> Completion:
    """Cuts off what was fed on behind the end of the request."""
    tokens = row[: request.max_new_tokens]
    end = next((i for i, token in enumerate(tokens) if token in request.eos_token_ids), None)
    reason = FinishReason.LENGTH if end is None else FinishReason.STOP
    tokens = tokens if end is None else tokens[: end + 1]
    kept = None if logits is None else torch.stack(logits[: len(tokens)])
    return Completion(request.request_id, tuple(tokens), reason, logits=kept)


def generate_static(
    model: PreTrainedModel, config: EngineConfig, *, compile: bool | str | None = None
) -> Engine:
    """Builds an engine around `model.generate`.

    `compile` says whether the decode step is compiled, or by which backend of `torch.compile`; by
    default it is on CUDA, by inductor. Raises `UnsupportedModelError` for a model that it would answer
    wrongly, such as one without a static cache.
    """
    refuse_batch_dependent(NAME, model)
    probe_logits(NAME, model, lambda model, config: GenerateEngine(model, config, None))
    if compile is None:
        compile = model.device.type == "cuda"
    return GenerateEngine(model, config, "inductor" if compile is True else compile or None)
