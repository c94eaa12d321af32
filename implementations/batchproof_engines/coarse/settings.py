"""Engines that do something else than they are asked to, alone and in a batch alike: a setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

import torch
from transformers import PreTrainedModel

from batchproof.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    EngineFactory,
    FinishReason,
    Request,
    SamplingParams,
)
from batchproof_engines.coarse.variant import BASES, Copies, Variant, on_a_copy

Feed = Callable[[Request], Request]
Answer = Callable[[Request, Completion], Completion]


class _Set:
    """Serves other requests than it is given, and answers in the place of those."""

    def __init__(self, engine: Engine, capabilities: frozenset[Capability], feed: Feed, give: Answer):
        self._engine, self._feed, self._give = engine, feed, give
        served = {Capability.CHUNKED_PREFILL, Capability.PREEMPTION}  # through `generate`
        self.capabilities = capabilities & served

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        fed = [self._feed(each) for each in requests]
        answers = self._engine.generate(fed)
        return [self._give(r, each) for r, each in zip(requests, answers, strict=True)]


@dataclass(frozen=True)
class _Requests:
    """Builds an engine that changes requests."""

    base: EngineFactory
    feed: Feed
    give: Answer

    def __call__(self, model: PreTrainedModel, config: EngineConfig) -> Engine:
        engine = self.base(model, config)
        capabilities: frozenset[Capability] = getattr(engine, "capabilities", frozenset())
        return _Set(engine, capabilities, self.feed, self.give)


def _as_fed(request: Request) -> Request:
    return request


def _as_given(_request: Request, completion: Completion) -> Completion:
    return replace(completion, logits=None)


def _prompt(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Feed:
    return lambda request: replace(request, prompt_token_ids=change(request.prompt_token_ids))


def _chosen(**parameters: float) -> Feed:
    asked = SamplingParams(**parameters)  # type: ignore[arg-type]
    return lambda request: replace(request, sampling=asked)


def _echo(request: Request, completion: Completion) -> Completion:
    given = (*request.prompt_token_ids, *completion.token_ids)
    return replace(completion, token_ids=given, logits=None)


def _stopping_at(token: int) -> Feed:
    return lambda request: replace(request, eos_token_ids=request.eos_token_ids | {token})


def _cut_at(length: int) -> Feed:
    return lambda request: replace(request, max_new_tokens=min(length, request.max_new_tokens))


def _past_eos(_request: Request, completion: Completion) -> Completion:
    return replace(completion, finish_reason=FinishReason.LENGTH, logits=None)


FED: dict[str, tuple[str, Feed, Answer]] = {
    "bos_0": ("Token 0 is put before each prompt.", _prompt(lambda p: (0, *p)), _as_given),
    "last_40": ("Only the last 40 tokens of a prompt are read.", _prompt(lambda p: p[-40:]), _as_given),
    "repetition_1_1": (
        "A repetition penalty of 1.1 is on.",
        _chosen(repetition_penalty=1.1),
        _as_given,
    ),
    "temperature_1": ("Tokens are drawn at temperature 1.", _chosen(temperature=1.0), _as_given),
    "bos_42": ("Token 42 is put before each prompt.", _prompt(lambda p: (42, *p)), _as_given),
    "eos_behind": ("Token 2 is put behind each prompt.", _prompt(lambda p: (*p, 2)), _as_given),
    "first_16": (
        "Only the first 16 tokens of a prompt are read.",
        _prompt(lambda p: p[:16]),
        _as_given,
    ),
    "repetition_1_25": (
        "A repetition penalty of 1.25 is on.",
        _chosen(repetition_penalty=1.25),
        _as_given,
    ),
    "presence_0_6": ("A presence penalty of 0.6 is on.", _chosen(presence_penalty=0.6), _as_given),
    "temperature_0_7": (
        "Tokens are drawn at temperature 0.7 with top_p 0.9.",
        _chosen(temperature=0.7, top_p=0.9),
        _as_given,
    ),
    "eos_17": ("Answers also stop at token 17.", _stopping_at(17), _as_given),
    "cut_at_5": ("Answers end after 5 tokens at most.", _cut_at(5), _as_given),
    "echo": ("The prompt is echoed before the answer.", _as_fed, _echo),
    "ignore_eos": ("EOS ids are ignored.", lambda r: replace(r, eos_token_ids=frozenset()), _past_eos),
}


def _with(model: PreTrainedModel, **fields: object) -> PreTrainedModel:
    """Returns a model of the same weights whose configuration has other fields, if it has them."""
    config = deepcopy(model.config)
    for name, value in fields.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
    with torch.random.fork_rng(devices=[]):
        changed = type(model)(config).to(model.dtype)
    changed.load_state_dict(model.state_dict())
    changed.set_attn_implementation(model.config._attn_implementation)
    return changed.eval().requires_grad_(False)


def _with_rope(parameters: dict[str, object], model: PreTrainedModel) -> PreTrainedModel:
    known = getattr(model.config, "rope_parameters", None) or {}
    return _with(model, rope_parameters={**known, **parameters})


def _without_window(model: PreTrainedModel) -> PreTrainedModel:
    return _with(model, sliding_window=None)


MODELS: dict[str, tuple[str, Copies]] = {
    "without_window": ("The sliding window is ignored.", Copies(_without_window)),
    "theta_10000": ("RoPE theta is 10,000.", Copies(partial(_with_rope, {"rope_theta": 1e4}))),
    "linear_2": (
        "RoPE positions are halved.",
        Copies(partial(_with_rope, {"rope_type": "linear", "factor": 2.0})),
    ),
}


def _variants() -> dict[str, Variant]:
    found = {}
    for base, factory in BASES.items():
        for kind, (summary, feed, give) in FED.items():
            name = f"{kind}-{base}"
            found[name] = Variant(name, summary, kind, _Requests(factory, feed, give))
        for kind, (summary, copies) in MODELS.items():
            name = f"{kind}-{base}"
            found[name] = Variant(name, summary, kind, on_a_copy(copies, factory))
    return found


SET: dict[str, Variant] = _variants()
