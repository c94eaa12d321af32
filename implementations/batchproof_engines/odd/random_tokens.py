"""Unusual draws from the right distribution: other random numbers, other ways to use them, other cuts
of the likeliest tokens."""

import hashlib
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from batchproof.api import Capability, SamplingParams
from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.engine import RaggedEngine
from batchproof_engines.sampler import GREEDY, SampledRow, Sampler


@odd
class DrawsByInverseCdf(Sampler):
    """A draw is the token at which the sum of probabilities passes one uniform number."""

    def drawn(self, logits: Tensor, row: SampledRow) -> int:
        asked = row.request.sampling or GREEDY
        kept = self.truncated(logits / asked.temperature, asked)
        shares = kept.double().softmax(dim=-1).numpy()
        entropy = None if asked.seed is None else (asked.seed, len(row.output_token_ids))
        number = np.random.default_rng(entropy).random()
        return int((shares.cumsum() > number * shares.sum()).argmax())


@odd
class SeedsAreSaltedByThePrompt(Sampler):
    """The prompt enters the seed, so that equal seeds mean nothing across prompts; the id does not."""

    def drawn(self, logits: Tensor, row: SampledRow) -> int:
        request, asked = row.request, row.request.sampling or GREEDY
        if asked.seed is None:
            return super().drawn(logits, row)
        text = f"{asked.seed} {request.prompt_token_ids}"
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
        salted = replace(request, sampling=replace(asked, seed=seed))
        return super().drawn(logits, row._replace(request=salted))


@odd
class CutsFromTheOtherEnd(Sampler):
    """The unlikeliest tokens are dropped while their sum is at most 1 - top_p, and the rest but for the
    last k in ascending order, so that of ties some go."""

    def truncated(self, logits: Tensor, asked: SamplingParams) -> Tensor:
        logits = super().truncated(logits, replace(asked, top_p=1.0, top_k=0))
        if asked.top_k > 0:
            dropped = logits.argsort(stable=True)[: -asked.top_k]
            logits = logits.index_fill(0, dropped, -torch.inf)
        if asked.top_p < 1:
            ordered, order = logits.softmax(dim=-1).sort(stable=True)
            dropped = order[:-1][ordered.cumsum(dim=-1)[:-1] <= 1 - asked.top_p]
            logits = logits.index_fill(0, dropped, -torch.inf)
        return logits


class _Unseeded(Sampler):
    def noise(self, seed: int | None, index: int, size: int) -> np.ndarray:  # noqa: ARG002
        return super().noise(None, index, size)


@odd
class DrawsWithoutSeeds(RaggedEngine):
    """It draws from the system's randomness alone, and does not claim that seeds decide anything."""

    capabilities = RaggedEngine.capabilities - {Capability.SEEDED_SAMPLING}
    sampler_class = _Unseeded
