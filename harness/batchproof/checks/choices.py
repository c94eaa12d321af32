"""Decides whether tokens are chosen by their request's parameters (P19).

    greedy   the processed float64 logits of each token, given those before it, are within rounding of
             the best
    drawn    each token is one of those that may be drawn, as far as rounding lets one say

The frequencies of drawn tokens are judged over many requests: `checks.draws`.
"""

from __future__ import annotations

import torch

from batchproof.api import Completion, Request
from batchproof.checks.broken import broken
from batchproof.findings.finding import Facts, Rule
from batchproof.oracle.choosing import amplification, kept, processed, sampling_of
from batchproof.oracle.oracle import Oracle


def check_processed(request: Request, completion: Completion, oracle: Oracle) -> None:
    """Checks greedy choices from processed logits. Raises `BrokenPromise`."""
    tokens, asked = completion.token_ids, sampling_of(request)
    exact = processed(oracle.score(request.prompt_token_ids, tokens), request, tokens)
    chosen = exact.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    best = exact.max(dim=-1)
    facts: Facts = {"got": tokens, "sampling": str(asked)}
    _require_allowed(request, tokens, chosen > -torch.inf, facts)
    regret = best.values - chosen
    bound = 2 * amplification(asked) * oracle.kappa * oracle.error.max_abs
    is_wrong = regret > bound
    if bool(is_wrong.any()):
        step = int(is_wrong.nonzero()[0])
        raise broken(
            Rule.PROCESSED,
            request.request_id,
            step,
            token=tokens[step],
            right_token=int(best.indices[step]),
            should_be=oracle.choices(request)[: len(tokens)],
            margin=float(regret[step]),
            bound=bound,
            **facts,
        )


def check_drawn(request: Request, completion: Completion, oracle: Oracle) -> None:
    """Checks that each drawn token is one that may be drawn. Raises `BrokenPromise`."""
    tokens, asked = completion.token_ids, sampling_of(request)
    exact = processed(oracle.score(request.prompt_token_ids, tokens), request, tokens)
    slack = amplification(asked) * oracle.kappa * oracle.error.max_abs
    may_be = kept(exact, asked, slack).gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    _require_allowed(request, tokens, may_be, {"got": tokens, "sampling": str(asked)})


def _require_allowed(
    request: Request, tokens: tuple[int, ...], is_allowed: torch.Tensor, facts: Facts
) -> None:
    if not bool(is_allowed.all()):
        step = int((~is_allowed).nonzero()[0])
        raise broken(Rule.FORBIDDEN, request.request_id, step, token=tokens[step], **facts)
