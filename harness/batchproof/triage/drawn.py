"""Tokens that were drawn at random, as by a server whose temperature is not 0 by default."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import sqrt

import torch
from torch import Tensor

from batchproof.api import SamplingParams
from batchproof.oracle.choosing import probabilities

TEMPERATURES = tuple(round(0.1 * each, 1) for each in range(2, 16))
TOP_PS = (1.0, 0.95, 0.9, 0.8)
TOP_KS = (0, 50, 40, 20, 10)
LEAST = 1e-7  # share of a token that a few thousand draws show
CUT = 3.0  # nats that a top_p or a top_k must add to be named
KOLMOGOROV = 1.95  # exceeded by chance once in a thousand times


def drawn_with(answers: Sequence[tuple[tuple[int, ...], Tensor]]) -> SamplingParams | None:
    """Returns the parameters with which answers were most likely drawn; None if none explain them.

    Each answer has its tokens and their float64 logits `(len(token_ids), vocab)`. Parameters explain
    them if no token is all but impossible, and the places of tokens in their distributions, the
    likeliest first, are spread evenly, both of first tokens and of later ones: a token that is wrong
    for another reason makes all that follow wrong, but not those before it.
    """
    logits = torch.cat([each for _, each in answers])
    tokens = torch.tensor([token for token_ids, _ in answers for token in token_ids])
    is_first = torch.tensor([not place for token_ids, _ in answers for place in range(len(token_ids))])
    best: tuple[float, SamplingParams] | None = None
    for temperature, top_p, top_k in product(TEMPERATURES, TOP_PS, TOP_KS):
        asked = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k)
        shares = probabilities(logits, asked)
        chosen = shares.gather(-1, tokens[:, None])
        if bool((chosen < LEAST).any()):
            continue
        before = (shares * (shares > chosen)).sum(-1)
        likelihood = float(chosen.log().sum()) - CUT * ((top_p < 1) + (top_k > 0))
        is_even = all(_is_even(before[some], chosen[some, 0]) for some in (is_first, ~is_first))
        if is_even and (best is None or likelihood > best[0]):
            best = likelihood, asked
    return None if best is None else best[1]


def _is_even(before: Tensor, share: Tensor) -> bool:
    """Returns whether the places are spread evenly over 0 to 1, by Kolmogorov's test. A token's place
    is anywhere, by a fixed chance, in the span of its share behind those that are likelier."""
    generator = torch.Generator().manual_seed(0)
    place = before + share * torch.rand(len(share), generator=generator, dtype=share.dtype)
    steps = torch.arange(1, len(place) + 1, dtype=share.dtype) / max(1, len(place))
    return float((place.sort().values - steps).abs().amax()) <= KOLMOGOROV / sqrt(len(place))
