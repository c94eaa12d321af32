"""transformers' `generate` with a static cache, its decode step compiled: a peer that needs no wheel.

Up to `max_num_seqs` requests, first come, first served, are padded on the left and decoded until each
has its EOS or its cap. transformers runs prompts uncompiled, and on CUDA compiles the step of one
token, as a CUDA graph (`mode="reduce-overhead"`). A compiled step is for one shape and one cache, so

* one cache serves all batches of an engine: `generate` alone makes one for each call, and what is
  compiled is guarded by its address;
* a compiled batch always has `max_num_seqs` rows; those that no request fills are fed and thrown away;
* the cache has room for the most that a batch has needed, a multiple of 256 tokens. It grows, at the
  price of a compilation, and never shrinks.

So the first batches compile: measure after a lap over the workload. Batches are not sorted by cap,
because a user seldom knows how long answers will be; `sort=true` does it, as a batch job may. Of a
batch, the longest prompt and the largest cap together fit the model's positions; else it ends early.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import CompileConfig, GenerationConfig, PreTrainedModel, StaticCache, StoppingCriteria

from batchproof.api import Capability, Completion, Engine, EngineConfig, FinishReason, Limits, Request
from batchproof_engines.model_support import refuse_batch_dependent
from batchproof_engines.trial_batch import probe_logits

NAME = "generate-static"
CACHE_STEP = 256  # tokens


class _RowsDone(StoppingCriteria):  # type: ignore[misc]
    """Says which rows have their EOS or their cap; `generate` itself has one cap for all rows."""

    def __init__(self, batch: Sequence[Request], width: int, num_rows: int, device: torch.device) -> None:
        idle = num_rows - len(batch)
        most = max(1, *(len(request.eos_token_ids) for request in batch))
        eos = [sorted(request.eos_token_ids) for request in batch] + [[]] * idle
        self._eos = torch.tensor([ids + [-1] * (most - len(ids)) for ids in eos], device=device)
        ends = [width + request.max_new_tokens for request in batch] + [0] * idle
        self._ends = torch.tensor(ends, device=device)

    def __call__(self, input_ids: Tensor, scores: Any, **_more: Any) -> Tensor:
        return (input_ids[:, -1:] == self._eos).any(dim=1) | (self._ends <= input_ids.shape[1])


class GenerateEngine:
    """Serves batches by `model.generate`; without a `compiler` the decode step is not compiled."""

    capabilities = frozenset({Capability.LOGITS, Capability.CLOSING})
    sampling_fields: frozenset[str] = frozenset()
    release = f"transformers generate {version('transformers')}"

    def __init__(
        self, model: PreTrainedModel, config: EngineConfig, compiler: str | None, is_sorted: bool
    ) -> None:
        self._model = model
        self._config = config
        self._compiler = compiler
        self._is_sorted = is_sorted
        self._limits = Limits.of(model, config)
        self._num_positions = Limits.of(model, EngineConfig()).max_model_len
        self._cache: StaticCache | None = None
        self._sizes = 0, 0  # of the cache: rows, tokens

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Returns one completion per request, in order; bad requests are refused and join no batch."""
        refusals = [
            refusal or (r.sampling and r.sampling.beyond(self.sampling_fields))
            for r, refusal in zip(requests, self._limits.refusals(requests), strict=True)
        ]
        good = [r for r, refusal in zip(requests, refusals, strict=True) if refusal is None]
        if self._is_sorted:
            good.sort(key=lambda request: -request.max_new_tokens)
        served = {each.request_id: each for batch in self._batches(good) for each in self._serve(batch)}
        return [
            served[r.request_id] if refusal is None else Completion.refused(r.request_id, refusal)
            for r, refusal in zip(requests, refusals, strict=True)
        ]

    def close(self) -> None:
        """Frees the cache. What is compiled stays with the model, as transformers keeps it."""
        self._cache, self._sizes = None, (0, 0)

    def _batches(self, requests: Sequence[Request]) -> Iterator[list[Request]]:
        batch: list[Request] = []
        for request in requests:
            grown = [*batch, request]
            if batch and (
                len(grown) > self._config.max_num_seqs or sum(_sizes(grown)) > self._num_positions
            ):
                yield batch
                grown = [request]
            batch = grown
        if batch:
            yield batch

    @torch.inference_mode(mode=False)  # the cache of one call serves the next
    def _serve(self, batch: Sequence[Request]) -> Iterator[Completion]:
        width, cap = _sizes(batch)
        num_rows = self._config.max_num_seqs if self._compiler else len(batch)
        prompts = [request.prompt_token_ids for request in batch] + [(0,)] * (num_rows - len(batch))
        device = self._model.device
        ids = torch.tensor([(0,) * (width - len(p)) + tuple(p) for p in prompts], device=device)
        mask = torch.tensor([(0,) * (width - len(p)) + (1,) * len(p) for p in prompts], device=device)
        with self._lent(cap):
            output = self._model.generate(
                ids,
                attention_mask=mask,
                past_key_values=self._empty_cache(num_rows, width + cap),
                stopping_criteria=[_RowsDone(batch, width, num_rows, device)],
            )
        rows = output.sequences[:, width:].tolist()
        for index, request in enumerate(batch):
            yield _completion(request, rows[index], [logits[index] for logits in output.logits or ()])

    @contextmanager
    def _lent(self, cap: int) -> Iterator[None]:
        """A context in which the model generates greedily, whatever its own generation config says."""
        compiling = CompileConfig(backend=self._compiler) if self._compiler else None
        if compiling is not None:
            compiling._compile_all_devices = True
        config = GenerationConfig(
            max_new_tokens=cap,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=self._config.return_logits,
            compile_config=compiling,
            disable_compile=compiling is None,
        )
        with (
            patch.dict(os.environ),  # it turns the parallelism of tokenizers off
            patch.object(self._model, "generation_config", config),
        ):
            yield

    def _empty_cache(self, num_rows: int, num_tokens: int) -> StaticCache:
        """Returns the cache of the last batch, emptied, or a new one if that has other sizes."""
        rows, tokens = self._sizes
        if self._cache is not None and rows == num_rows and tokens >= num_tokens:
            self._cache.reset()
            return self._cache
        self._sizes = num_rows, max(tokens, -(-num_tokens // CACHE_STEP) * CACHE_STEP)
        self._cache = None  # its memory is free for the new one
        config = self._model.config.get_text_config(decoder=True)
        self._cache = StaticCache(config=config, max_cache_len=self._sizes[1])
        return self._cache


def _sizes(batch: Sequence[Request]) -> tuple[int, int]:
    """Returns the longest prompt and the largest cap, in tokens."""
    return max(len(r.prompt_token_ids) for r in batch), max(r.max_new_tokens for r in batch)


def _completion(request: Request, row: list[int], logits: list[Tensor]) -> Completion:
    """Cuts what was fed on behind the end of the request."""
    tokens = row[: request.max_new_tokens]
    end = next((i for i, token in enumerate(tokens) if token in request.eos_token_ids), None)
    reason = FinishReason.LENGTH if end is None else FinishReason.STOP
    tokens = tokens if end is None else tokens[: end + 1]
    kept = torch.stack(logits[: len(tokens)]) if logits else None
    return Completion(request.request_id, tuple(tokens), reason, logits=kept)


def generate_static(
    model: PreTrainedModel,
    config: EngineConfig,
    *,
    compile: bool | str | None = None,
    sort: bool = False,
) -> Engine:
    """Builds an engine around `model.generate`.

    * `compile`: whether the decode step is compiled, or by which backend of torch.compile; by default
      it is on CUDA, by inductor.
    * `sort`: requests with large caps are served first, so that those of a batch end together.

    Raises `UnsupportedModelError` for a model that it would answer wrongly, or without a static cache.
    """
    refuse_batch_dependent(NAME, model)
    probe_logits(NAME, model, lambda model, config: GenerateEngine(model, config, None, False))
    if compile is None:
        compile = model.device.type == "cuda"
    compiler = compile if isinstance(compile, str) else "inductor" if compile else None
    return GenerateEngine(model, config, compiler, sort)
