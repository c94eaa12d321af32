"""Honest engines whose answers are not those of the model as it is served: coarse arithmetic, or other
settings than asked for.

They test `batchproof triage`, which must tell both from corruption. `--engine coarse:KIND-BASE` and
`--engine set:KIND-BASE` select one, such as `coarse:bfloat16-static`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from transformers import PreTrainedModel

from batchproof.api import Completion, Engine, EngineConfig, EngineFactory, Request, SamplingParams
from batchproof_engines.copies import in_dtype
from batchproof_engines.reference import ReferenceEngine
from batchproof_engines.static import StaticEngine

__all__ = ["COARSE", "SET"]

# None runs a trial batch: it might refuse what is coarse.
BASES: dict[str, EngineFactory] = {"reference": ReferenceEngine, "static": StaticEngine}
Feed = Callable[[Request], Request]
FED: dict[str, tuple[str, Feed]] = {
    "bos_0": (
        "Token 0 is put before each prompt.",
        lambda request: replace(request, prompt_token_ids=(0, *request.prompt_token_ids)),
    ),
    "repetition_1_1": (
        "A repetition penalty of 1.1 is on.",
        lambda request: replace(request, sampling=SamplingParams(repetition_penalty=1.1)),
    ),
    "temperature_1": (
        "Tokens are drawn at temperature 1.",
        lambda request: replace(request, sampling=SamplingParams(temperature=1.0)),
    ),
    "cut_at_5": (
        "Answers end after 5 tokens at most.",
        lambda request: replace(request, max_new_tokens=min(5, request.max_new_tokens)),
    ),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """An honest engine that is coarse or set otherwise."""

    name: str
    summary: str
    factory: EngineFactory = field(compare=False)


@dataclass(frozen=True)
class _Set:
    """Serves other requests than it is given, and answers in the place of those."""

    engine: Engine
    feed: Feed

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        answers = self.engine.generate([self.feed(each) for each in requests])
        return [replace(each, logits=None) for each in answers]


def _set_otherwise(
    feed: Feed, base: EngineFactory, model: PreTrainedModel, config: EngineConfig
) -> Engine:
    return _Set(base(model, config), feed)


def _in_bfloat16(base: EngineFactory, model: PreTrainedModel, config: EngineConfig) -> Engine:
    return base(in_dtype(model, torch.bfloat16), config)


def _on_each_base(kind: str, summary: str, build: Callable[..., Engine]) -> dict[str, Variant]:
    names = {base: f"{kind}-{base}" for base in BASES}
    return {name: Variant(name, summary, partial(build, BASES[base])) for base, name in names.items()}


COARSE = _on_each_base("bfloat16", "All arithmetic is bfloat16.", _in_bfloat16)
SET: dict[str, Variant] = {}
for _kind, (_summary, _feed) in FED.items():
    SET |= _on_each_base(_kind, _summary, partial(_set_otherwise, _feed))
