"""The specification: greedy decoding of one prompt at a time, one token at a time, with a cache each,
if the model has one.

It is written for clarity, not for speed. No other engine imports it; a test compares it with
`model.generate`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from batchproof.api import CHOOSING, Capability, Completion, Engine, EngineConfig, Limits, Request
from batchproof_engines.completions import with_refused
from batchproof_engines.model_support import cache_parameter, counts_from_zero, unsupported
from batchproof_engines.sampler import Answer, Choice, SampledRow, Sampler


class ReferenceEngine:
    """Decodes each request alone; `max_num_seqs` and the block pool have no effect."""

    capabilities = frozenset({Capability.LOGITS}) | CHOOSING

    def __init__(self, model: PreTrainedModel, config: EngineConfig) -> None:
        self._model = model
        self._return_logits = config.return_logits
        self._limits = Limits.of(model, config)
        self._cache_name = cache_parameter(model)
        self._gives_positions = counts_from_zero(model)
        self._sampler = Sampler()

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        refusals = self._limits.refusals(requests)
        return with_refused(requests, refusals, lambda good: map(self._complete, good))

    @torch.inference_mode()
    def _complete(self, request: Request) -> Completion:
        name = self._cache_name
        fed = request.prompt_token_ids  # the prompt at first, then one new token at a time
        given: dict[str, Any] = {"use_cache": name is not None}  # the model makes its own cache
        answer = Answer(request, self._return_logits)
        while answer.finish_reason is None:
            input_ids = torch.tensor([fed], device=self._model.device)
            if self._gives_positions:
                end = len(request.prompt_token_ids) + len(answer.token_ids)
                positions = torch.arange(end - len(fed), end, device=self._model.device)
                given["position_ids"] = positions[None]
            output = self._model(input_ids=input_ids, **given)
            if name is not None:
                if name not in output:
                    why = f"it takes {name!r}, but does not give it back"
                    raise unsupported("reference", self._model, why)
                given[name] = output[name]
            if not answer.token_ids:
                self._sampler.score_prompt(answer.prompt_logprobs, request, 0, output.logits[0])
            last = output.logits[0, -1]
            if request.sampling is None:  # plain, whatever a sampler might do
                choice = Choice(int(last.argmax()))
            else:
                (choice,) = self._sampler.choose(last[None], [SampledRow(request, answer.token_ids)])
            answer.append(choice, last.float())
            fed = (*fed, choice.token_id) if name is None else (choice.token_id,)
        return answer.completion()


def reference(model: PreTrainedModel, config: EngineConfig) -> Engine:
    return ReferenceEngine(model, config)
