"""What is refused on this side of the wire, because the wire cannot carry it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.api import EngineConfig, Limits, Request, duplicate_id


@dataclass(frozen=True, slots=True)
class Gate:
    """`model`: what the model itself allows, which is the server's to check. `config`: narrowed by
    `max_model_len`, of which the server knows nothing."""

    model: Limits
    config: Limits

    @classmethod
    def of(cls, model: Limits, config: EngineConfig) -> Gate:
        length = min(model.max_model_len, config.max_model_len or model.max_model_len)
        return cls(model, replace(model, max_model_len=length))

    def refusal(self, request: Request) -> str | None:
        """None also for a request that is bad in itself: that one is sent."""
        return None if self.model.refusal(request) is not None else self.config.refusal(request)

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
