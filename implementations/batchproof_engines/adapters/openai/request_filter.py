"""Which requests are refused before they are sent, because the interface cannot carry them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchproof.api import Limits, Request, SamplingParams, duplicate_id


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Refuses requests on behalf of the server.

    `model` is what the model allows, which the server checks by itself. `config` also has
    `max_model_len`, which the server does not know. `fields` are those of `SamplingParams` that it
    takes; stop sequences, which it is never sent, are checked here. With `is_text`, prompts are words,
    and a token outside the vocabulary has none.
    """

    model: Limits
    config: Limits
    fields: frozenset[str]
    is_text: bool

    def refusal(self, request: Request) -> str | None:
        """Returns why the request is not sent, or None; a bad request is sent if that is possible."""
        asked = request.sampling or SamplingParams()
        vocabulary = range(self.model.vocab_size)
        has_no_words = self.is_text and any(t not in vocabulary for t in request.prompt_token_ids)
        is_unseen = has_no_words or () in asked.stop_token_sequences
        is_judged_here = is_unseen or self.model.refusal(request) is None
        return asked.beyond(self.fields) or (self.config.refusal(request) if is_judged_here else None)

    def refusals(self, requests: Sequence[Request]) -> list[str | None]:
        """Returns `refusal` for a whole call; of two good requests with one id, the later is
        refused."""
        live: set[str] = set()
        reasons: list[str | None] = []
        for request in requests:
            is_good = self.config.refusal(request) is None
            is_duplicate = is_good and request.request_id in live
            reason = duplicate_id(request.request_id) if is_duplicate else self.refusal(request)
            reasons.append(reason)
            if is_good:
                live.add(request.request_id)
        return reasons
