"""How requests are written for a server: which fields of `SamplingParams` it takes, and the body."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from batchproof.api import CHOOSING, Capability, Request, fields_of
from batchproof.workload.sampling_values import plain_values
from batchproof_engines.adapters.word_tokenizer import text_of

_OPENAI = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias")
_VLLM = (*_OPENAI, "top_k", "min_p", "repetition_penalty", "allowed_token_ids", "min_tokens")
SAMPLING = {"none": (), "openai": _OPENAI, "vllm": _VLLM}  # fields of `SamplingParams` by dialect
CLIENTS = "stop_token_sequences"  # the interface has texts in their place, so the client applies them


@dataclass(frozen=True, slots=True)
class Dialect:
    """The checked options of `openai`."""

    model: str
    vocab_size: int
    prompts: str
    tokens: str
    eos: str
    is_streamed: bool
    extra: dict[str, Any]
    fields: frozenset[str] = frozenset()  # of `SamplingParams`, which requests may use
    is_seeded: bool = False

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Returns the capabilities that the fields make."""
        seeded = {Capability.SEEDED_SAMPLING} if self.is_seeded else set()
        others = CHOOSING - {Capability.SEEDED_SAMPLING}
        return frozenset(seeded | {each for each in others if self.fields & fields_of({each})})

    def body(self, request: Request) -> dict[str, Any]:
        """Returns the body for a request, even for a bad one: refusing it is the server's duty."""
        eos = sorted(request.eos_token_ids)
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(request.prompt_token_ids),
            "max_tokens": request.max_new_tokens,
            "temperature": 0,
        }
        if self.prompts == "words":
            body["prompt"] = text_of(request.prompt_token_ids, self.vocab_size)
        if self.is_streamed:
            body["stream"] = True
        if self.tokens == "ids":
            body["return_token_ids"] = True
        if self.tokens == "logprobs":
            body |= {"logprobs": 1, "return_tokens_as_token_ids": True}
        if self.eos == "stop_token_ids" and eos:
            body["stop_token_ids"] = eos
        if self.eos == "generation_config" and eos:
            body["generation_config"] = json.dumps({"eos_token_id": eos})
        asked = {} if request.sampling is None else plain_values(request.sampling)
        asked.pop(CLIENTS, None)
        if "logit_bias" in asked:
            asked["logit_bias"] = {str(token): bias for token, bias in asked["logit_bias"]}
        if "logprobs" in asked:  # the likeliest at least: it shows whether the chosen one is that
            asked |= {"logprobs": asked["logprobs"] or 1, "return_tokens_as_token_ids": True}
        body |= asked
        return {key: value for key, value in (body | self.extra).items() if value is not None}
