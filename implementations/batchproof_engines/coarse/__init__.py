"""Honest engines whose answers are not those of the model as it is served: coarse arithmetic, or other
settings than asked for.

They test `batchproof triage`, which must tell both from corruption. `--engine coarse:KIND-BASE` and
`--engine set:KIND-BASE` select one, such as `coarse:bfloat16-static`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from transformers import PreTrainedModel

from batchproof.api import Completion, Engine, EngineConfig, EngineFactory, Request, SamplingParams
from batchproof.models.catalogue import moved
from batchproof_engines.copies import Copies
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


def _set_otherwise(name: str, base: str) -> Variant:
    summary, feed = FED[name]

    def factory(model: PreTrainedModel, config: EngineConfig) -> Engine:
        return _Set(BASES[base](model, config), feed)

    return Variant(f"{name}-{base}", summary, factory)


_IN_BFLOAT16 = Copies(lambda model: moved(model, model.device, torch.bfloat16))


def _in_bfloat16(base: str) -> Variant:
    def factory(model: PreTrainedModel, config: EngineConfig) -> Engine:
        return BASES[base](_IN_BFLOAT16.of(model), config)

    return Variant(f"bfloat16-{base}", "All arithmetic is bfloat16.", factory)


COARSE = {each.name: each for each in map(_in_bfloat16, BASES)}
SET = {each.name: each for each in (_set_otherwise(name, base) for name in FED for base in BASES)}
