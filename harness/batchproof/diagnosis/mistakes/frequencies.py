"""Mistakes in the probabilities of tokens that are drawn, tried on how often each was drawn first."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from batchproof.api import Request
from batchproof.checks.draws import cells_of
from batchproof.diagnosis.mistakes.choices import BOUNDS
from batchproof.oracle.choosing import kept, probabilities, processed, sampling_of
from batchproof.oracle.oracle import Oracle
from batchproof.statistics import g_test

PLAUSIBLE = 1e-3  # p-value of a mistake that is named


def frequency_mistakes(oracle: Oracle, request: Request, tokens: Sequence[int]) -> list[str]:
    """Returns the mistakes that give these first tokens their frequencies best, which are several only
    if they do so equally; none if the right probabilities give them, or no mistake does."""
    logits = processed(oracle.score(request.prompt_token_ids, (0,)), request, (0,))
    counts: Counter[tuple[int, ...]] = Counter((token,) for token in tokens)

    def p_value(shares: Tensor) -> float:
        likely: dict[tuple[int, ...], float] = {
            (at,): float(share) for at, share in enumerate(shares[0]) if share > 0
        }
        if any(each not in likely for each in counts):
            return 0.0
        _, observed, expected = cells_of(counts, likely)
        return g_test(observed, expected)[1] if len(observed) > 1 else float(len(likely) == 1)

    if p_value(probabilities(logits, sampling_of(request))) > PLAUSIBLE:
        return []
    tried = {words: p_value(shares) for words, shares in _mistakes(logits, request)}
    best = max(PLAUSIBLE, *tried.values())
    return [words for words, p in tried.items() if p >= best]


def _mistakes(logits: Tensor, request: Request) -> Iterator[tuple[str, Tensor]]:
    """Yields mistakes and the shares that they give all tokens, `(1, vocab)`."""
    asked = sampling_of(request)
    scaled, allowed = logits / asked.temperature, kept(logits, asked)
    ordered = scaled.argsort(descending=True)[0]
    num = int(allowed.sum())

    def shares(which: Tensor, values: Tensor = scaled) -> Tensor:
        return values.masked_fill(~which, -torch.inf).softmax(dim=-1)

    def first(most: int) -> Tensor:
        return torch.zeros_like(allowed).scatter(1, ordered[None, :most], value=True) & (
            scaled > -torch.inf
        )

    for name in {*BOUNDS} & {*asked.changed}:
        without: dict[str, Any] = {name: BOUNDS[name]}
        yield f"{name} is left out", shares(kept(logits, replace(asked, **without)))
    bounds = " and ".join(name for name in BOUNDS if name in asked.changed) or "the bounds"
    yield f"{bounds} let one token too many through", shares(first(num + 1))
    yield f"{bounds} let one token too few through", shares(first(max(1, num - 1)))
    if asked.min_p > 0:
        absolute = kept(logits, replace(asked, min_p=0.0)) & (scaled.softmax(-1) >= asked.min_p)
        words = "min_p cuts by a token's own probability, not by its share of the likeliest's"
        yield words, shares(absolute | first(1))
    if asked.top_p < 1 and not {"top_k", "min_p"}.isdisjoint(asked.changed):
        alone = kept(logits, replace(asked, top_k=0, min_p=0.0))
        words = "top_p is cut from all tokens, not from what the other bounds leave"
        yield words, shares(alone & kept(logits, replace(asked, top_p=1.0)))
    early = kept(logits, replace(asked, temperature=1.0))
    yield "the temperature comes behind the bounds", shares(early)
    for words, temperature in (
        ("the temperature is not applied", 1.0),
        ("the temperature is applied twice", asked.temperature**2),
    ):
        yield words, shares(allowed, logits / temperature)
    yield "all tokens that may be drawn are taken alike", shares(allowed, torch.zeros_like(scaled))
    yield "the likeliest token is taken, not drawn", shares(first(1))
    yield (
        "the token taken is drawn from what the parameters exclude as well",
        shares(scaled > -torch.inf),
    )
