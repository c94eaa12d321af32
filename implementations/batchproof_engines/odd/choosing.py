"""Unusual arithmetic of penalties and logprobs, unusual ties and stops, and fewer capabilities."""

from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from batchproof.api import CHOOSING, Capability, TokenLogprobs
from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.sampler import GREEDY, Choice, SampledRow, Sampler


@odd
class PenaltiesOverTheWholeVocabulary(Sampler):
    """All stages are dense float64 vectors over the vocabulary, built for each token: a bias that
    holds bans as well, a factor, and counts of produced tokens."""

    def processed(self, logits: Tensor, row: SampledRow) -> Tensor:
        asked, size, outputs = row.request.sampling or GREEDY, len(logits), row.output_token_ids
        allowed = range(size) if asked.allowed_token_ids is None else asked.allowed_token_ids
        ends = row.request.eos_token_ids if len(outputs) < asked.min_tokens else frozenset[int]()
        bias = torch.full((size,), -torch.inf, dtype=torch.float64)
        bias[sorted(set(allowed) - ends)] = 0.0
        if row.matcher is not None:
            bias[~row.matcher.allowed(outputs)] = -torch.inf
        for token_id, added in asked.logit_bias:
            bias[token_id] += added
        values = logits.double() + bias
        seen = torch.zeros(size, dtype=torch.bool)
        seen[[*row.request.prompt_token_ids, *outputs]] = True
        factor = torch.where(values > 0, 1 / asked.repetition_penalty, asked.repetition_penalty)
        counts = torch.bincount(torch.tensor([*outputs], dtype=torch.long), minlength=size)
        values = torch.where(seen, values * factor, values)
        return values - asked.frequency_penalty * counts - asked.presence_penalty * (counts > 0)


@odd
class TiesGoToTheHighestId(Sampler):
    """Of equal logits the last is chosen, stands first among the likeliest, and has the best rank."""

    def choose(self, logits: Tensor, rows: Seq[SampledRow]) -> list[Choice]:
        last = logits.shape[-1] - 1
        flipped = [last - int(each) for each in logits.flip(-1).argmax(dim=-1)]
        return [
            choice._replace(token_id=token_id) if row.is_plain else choice
            for choice, row, token_id in zip(super().choose(logits, rows), rows, flipped, strict=True)
        ]

    def logprobs(self, logits: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
        found = logits.log_softmax(dim=-1)
        order = (len(logits) - 1 - found.flip(0).argsort(descending=True, stable=True)).tolist()
        top = tuple((each, float(found[each])) for each in order[:num_top])
        return TokenLogprobs(float(found[token_id]), order.index(token_id) + 1, top)


@odd
class LogprobsInFloat64(Sampler):
    """Logprobs are computed in float64 by a sum that the largest logit does not scale."""

    def logprobs(self, logits: Tensor, token_id: int, num_top: int) -> TokenLogprobs:
        values = logits.double().numpy()
        found = values - np.log(np.exp(values).sum())
        order = (-found).argsort(kind="stable")[:num_top].tolist()
        rank = int((found > found[token_id]).sum()) + 1
        top = tuple((each, float(found[each])) for each in order)
        return TokenLogprobs(float(found[token_id]), rank, top)


class _Undrawn(Sampler):
    def _choice(self, logits: Tensor, place: int, row: SampledRow) -> Choice:
        asked = row.request.sampling or GREEDY
        if asked.temperature or asked.logprobs is not None:
            raise NotImplementedError("draws and logprobs are not implemented")
        return super()._choice(logits, place, row)


@odd
class ChangesLogitsAndNoMore(RaggedEngine):
    """Of all ways to choose it claims penalties, biases and bans only; a draw or a logprob that is
    asked for raises an exception."""

    capabilities = RaggedEngine.capabilities - CHOOSING | {Capability.LOGIT_PROCESSING}
    sampler_class = _Undrawn
