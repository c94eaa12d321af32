"""How requests are written for a server: the body that is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from batchproof.api import Request
from batchproof_engines.adapters.word_tokenizer import text_of


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
        return {key: value for key, value in (body | self.extra).items() if value is not None}
