"""The specification: greedy decoding of one prompt at a time, one token at a time, with a KV cache
each.

It is written for clarity, not for speed. No other engine imports it; a test compares it with
`model.generate`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache, PreTrainedModel

from batchproof.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    FinishReason,
    Limits,
    Request,
)
from batchproof_engines.model_support import refuse_stateful


class ReferenceEngine:
    """Decodes each request alone; `max_num_seqs` and the block pool have no effect."""

    capabilities = frozenset({Capability.LOGITS})

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        self._model = model
        self._return_logits = config.return_logits
        self._limits = Limits.of(model, config)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Returns one completion per request, in order; a bad request is refused, the others are
        served."""
        refusals = self._limits.refusals(requests)
        return [
            self._complete(request)
            if refusal is None
            else Completion.refused(request.request_id, refusal)
            for request, refusal in zip(requests, refusals, strict=True)
        ]

    @torch.inference_mode()
    def _complete(self, request: Request) -> Completion:
        cache = DynamicCache(config=self._model.config)
        fed = request.prompt_token_ids  # the prompt at first, then one new token at a time
        token_ids: list[int] = []
        logits: list[torch.Tensor] = []
        while True:
            input_ids = torch.tensor([fed], device=self._model.device)
            output = self._model(input_ids=input_ids, past_key_values=cache, use_cache=True)
            last = output.logits[0, -1]
            if self._return_logits:
                logits.append(last.float())
            token_ids.append(int(last.argmax()))
            fed = (token_ids[-1],)
            if token_ids[-1] in request.eos_token_ids:
                reason = FinishReason.STOP
                break
            if len(token_ids) == request.max_new_tokens:
                reason = FinishReason.LENGTH
                break
        return Completion(
            request.request_id,
            tuple(token_ids),
            reason,
            logits=torch.stack(logits) if self._return_logits else None,
        )


def reference(model: PreTrainedModel, config: EngineConfig) -> Engine:
    """Builds the reference engine. Raises `UnsupportedModelError` for a model whose state is not a KV
    cache."""
    refuse_stateful("reference", model)
    return ReferenceEngine(model, config)
