"""Engines that do something else than they are asked to, alone and in a batch alike: a setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from transformers import PreTrainedModel

from batchproof.api import (
    Capability,
    Completion,
    EngineConfig,
    EngineFactory,
    FinishReason,
    Request,
    SamplingParams,
)
from batchproof_engines.coarse.variant import BASES, Variant

Feed = Callable[[Request], Request]
Answer = Callable[[Request, Completion], Completion]


class _Set:
    """Serves other requests than it is given, and answers in the place of those."""

    def __init__(
        self,
        base: EngineFactory,
        feed: Feed,
        give: Answer,
        model: PreTrainedModel,
        config: EngineConfig,
    ):
        self._engine, self._feed, self._give = base(model, config), feed, give
        served = {Capability.CHUNKED_PREFILL, Capability.PREEMPTION}  # through `generate`
        self.capabilities = frozenset(getattr(self._engine, "capabilities", ())) & served

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        fed = [self._feed(each) for each in requests]
        answers = self._engine.generate(fed)
        return [self._give(r, each) for r, each in zip(requests, answers, strict=True)]


def _as_given(_request: Request, completion: Completion) -> Completion:
    return replace(completion, logits=None)


def _past_eos(_request: Request, completion: Completion) -> Completion:
    return replace(completion, finish_reason=FinishReason.LENGTH, logits=None)


def _prompt(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Feed:
    return lambda request: replace(request, prompt_token_ids=change(request.prompt_token_ids))


def _sampled(**parameters: float) -> Feed:
    asked = SamplingParams(**parameters)  # type: ignore[arg-type]
    return lambda request: replace(request, sampling=asked)


def _stopping_at(token: int) -> Feed:
    return lambda request: replace(request, eos_token_ids=request.eos_token_ids | {token})


def _cut_at(length: int) -> Feed:
    return lambda request: replace(request, max_new_tokens=min(length, request.max_new_tokens))


def _without_eos(request: Request) -> Request:
    return replace(request, eos_token_ids=frozenset())


FED: dict[str, tuple[str, Feed]] = {
    "bos_0": ("Token 0 is put before each prompt.", _prompt(lambda p: (0, *p))),
    "bos_42": ("Token 42 is put before each prompt.", _prompt(lambda p: (42, *p))),
    "last_40": ("Only the last 40 tokens of a prompt are read.", _prompt(lambda p: p[-40:])),
    "first_16": ("Only the first 16 tokens of a prompt are read.", _prompt(lambda p: p[:16])),
    "repetition_1_1": ("A repetition penalty of 1.1 is on.", _sampled(repetition_penalty=1.1)),
    "temperature_1": ("Tokens are drawn at temperature 1.", _sampled(temperature=1.0)),
    "eos_17": ("Answers also stop at token 17.", _stopping_at(17)),
    "cut_at_5": ("Answers end after 5 tokens at most.", _cut_at(5)),
    "ignore_eos": ("EOS ids are ignored.", _without_eos),
}


def _variants() -> dict[str, Variant]:
    found = {}
    for base, factory in BASES.items():
        for kind, (summary, feed) in FED.items():
            name, give = f"{kind}-{base}", _past_eos if feed is _without_eos else _as_given
            found[name] = Variant(name, summary, kind, partial(_Set, factory, feed, give))
    return found


SET: dict[str, Variant] = _variants()
