"""Decides whether tokens are chosen by their request's parameters (P19).

    greedy   the processed float64 logits of each token, given those before it, are within rounding of
             the best
    drawn    each token is one of those that may be drawn, as far as rounding lets one say

The frequencies of drawn tokens are judged over many requests: `checks.draws`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from batchproof.api import Completion, Request
from batchproof.findings.finding import Facts, Finding, Rule, found
from batchproof.oracle.choosing import amplification, kept, processed, sampling_of
from batchproof.oracle.oracle import Oracle

Tokens = tuple[int, ...]


def processed_findings(request: Request, completion: Completion, oracle: Oracle) -> Iterator[Finding]:
    """Yields wrong greedy choices from processed logits."""
    tokens = completion.token_ids
    exact = _processed(request, tokens, oracle)
    chosen = of_each(exact, tokens)
    is_allowed = chosen > -torch.inf
    yield from _forbidden(request, tokens, is_allowed)
    best = exact.max(dim=-1)
    regret = best.values - chosen
    bound = 2 * _slack(request, oracle)
    is_wrong = is_allowed & ~(regret <= bound)  # `~`: a NaN must fail
    if bool(is_wrong.any()):
        step = int(is_wrong.nonzero()[0])
        yield found(
            Rule.PROCESSED,
            request.request_id,
            step,
            token=tokens[step],
            right_token=int(best.indices[step]),
            should_be=oracle.choices(request)[: len(tokens)],
            margin=float(regret[step]),
            bound=bound,
            **_facts(request, tokens),
        )


def drawn_findings(request: Request, completion: Completion, oracle: Oracle) -> Iterator[Finding]:
    """Yields the first drawn token that may not be drawn."""
    tokens = completion.token_ids
    exact = _processed(request, tokens, oracle)
    may_be = kept(exact, sampling_of(request), _slack(request, oracle))
    yield from _forbidden(request, tokens, of_each(may_be, tokens))


def _processed(request: Request, tokens: Tokens, oracle: Oracle) -> Tensor:
    """Returns the float64 logits `(len(tokens), vocab)` that tokens are chosen from."""
    return processed(oracle.score(request.prompt_token_ids, tokens), request, tokens)


def of_each(values: Tensor, tokens: Tokens) -> Tensor:
    """Returns each token's own value in its row, `(len(tokens),)`."""
    return values.gather(-1, torch.tensor(tokens)[:, None])[:, 0]


def _slack(request: Request, oracle: Oracle) -> float:
    """Returns by how much rounding may move a processed logit."""
    return amplification(sampling_of(request)) * oracle.logit_bound


def _facts(request: Request, tokens: Tokens) -> Facts:
    return {"got": tokens, "sampling": str(sampling_of(request))}


def _forbidden(request: Request, tokens: Tokens, is_allowed: Tensor) -> Iterator[Finding]:
    if not bool(is_allowed.all()):
        step = int((~is_allowed).nonzero()[0])
        facts = _facts(request, tokens)
        yield found(Rule.FORBIDDEN, request.request_id, step, token=tokens[step], **facts)
