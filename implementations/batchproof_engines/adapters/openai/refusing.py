"""What is refused on this side of the wire, because the wire cannot carry it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from batchproof.api import (
    EngineConfig,
    Limits,
    Request,
    duplicate_id,
)


@dataclass(frozen=True, slots=True)
class Gate:
    """`model`: what the model itself allows, which is the server's to check. `config`: narrowed by
    `max_model_len`, of which the server knows nothing. `is_text`: prompts are words, and a token that
    is none has no word to be sent as."""

    model: Limits
    config: Limits
    is_text: bool

    @classmethod
    def of(cls, model: Limits, config: EngineConfig, *, is_text: bool) -> Gate:
        length = min(model.max_model_len, config.max_model_len or model.max_model_len)
        return cls(model, replace(model, max_model_len=length), is_text)

    def refusal(self, request: Request) -> str | None:
        """None also for a request that is bad in itself: that one is sent if it can be."""
        vocabulary = range(self.model.vocab_size)
        has_no_words = self.is_text and any(t not in vocabulary for t in request.prompt_token_ids)
        if has_no_words or self.model.refusal(request) is None:
            return self.config.refusal(request)
        return None

    def refusals(self, requests: Sequence[Request]) -> list[str | None]:
        """`refusal` for a whole call; of two good requests with one id the later is refused."""
        live: set[str] = set()
        reasons: list[str | None] = []
        for request in requests:
            is_good = self.config.refusal(request) is None
            is_twin = is_good and request.request_id in live
            reasons.append(duplicate_id(request.request_id) if is_twin else self.refusal(request))
            if is_good:
                live.add(request.request_id)
        return reasons
