"""Decides whether logprobs are those of the model (P18).

A logprob is a logit minus the logarithm of a sum: where logits are off by up to e, it is off by up to
2 e. So logprobs are right within 2 kappa E of float64, given the engine's own tokens, and ranks and
likeliest tokens where that much decides them.
"""

from __future__ import annotations

from torch import Tensor

from batchproof.api import Completion, Request, TokenLogprobs
from batchproof.checks.broken import broken
from batchproof.findings.finding import Rule
from batchproof.oracle.choosing import sampling_of
from batchproof.oracle.oracle import Oracle


def check_logprobs(request: Request, completion: Completion, oracle: Oracle) -> None:
    """Checks the logprobs of an answer, if the request asks for them. Raises `BrokenPromise`."""
    num_top = sampling_of(request).logprobs
    if num_top is None:
        return
    tokens, given = completion.token_ids, completion.logprobs or ()
    if len(given) != len(tokens):
        raise broken(Rule.LOGPROBS_MISSING, request.request_id, num_tokens=len(tokens), got=len(given))
    exact = oracle.score(request.prompt_token_ids, tokens).log_softmax(dim=-1)
    bound = 2 * oracle.kappa * oracle.error.max_abs
    for step, (token, found) in enumerate(zip(tokens, given, strict=True)):
        _check_own(request, step, token, found, exact[step], bound)
        _check_top(request, step, found, exact[step], bound, num_top)


def _check_own(
    request: Request, step: int, token: int, found: TokenLogprobs, exact: Tensor, bound: float
) -> None:
    """Checks the chosen token's logprob and rank. `exact`: logprobs `(vocab,)`."""
    own = float(exact[token])
    if not abs(found.logprob - own) <= bound:  # `not`: a NaN must fail
        raise broken(
            Rule.LOGPROB,
            request.request_id,
            step,
            token=token,
            got=found.logprob,
            should_be=own,
            bound=bound,
        )
    best, worst = (int((exact > own + shift).sum()) + 1 for shift in (2 * bound, -2 * bound))
    worst = max(best, worst - 1)  # it stands among those that are not below it itself
    if not best <= found.rank <= worst:
        should_be = str(best) if best == worst else f"{best} to {worst}"
        where = request.request_id, step
        raise broken(Rule.RANK, *where, token=token, got=found.rank, should_be=should_be)


def _check_top(
    request: Request, step: int, found: TokenLogprobs, exact: Tensor, bound: float, num_top: int
) -> None:
    """Checks the likeliest tokens: how many, which, in what order, and their logprobs."""
    num_top = min(num_top, len(exact))
    best = exact.topk(num_top) if num_top else None
    ids, values = [token for token, _ in found.top], [value for _, value in found.top]
    what = None
    if len(ids) != num_top or len(set(ids)) != num_top:
        what = f"{num_top} different ones are asked for, but {len(set(ids))} are given"
    elif any(not 0 <= token < len(exact) for token in ids):
        what = "one is outside the vocabulary"
    elif values != sorted(values, reverse=True):
        what = "some stand out of order"
    elif any(not abs(value - float(exact[token])) <= bound for token, value in found.top):
        what = f"some logprobs are off by more than {bound:.2g}"
    elif best is not None and any(exact[token] < best.values[-1] - 2 * bound for token in ids):
        what = "one is not among them"
    if what is not None:
        pairs = [] if best is None else zip(best.indices.tolist(), best.values.tolist(), strict=True)
        should_be = ", ".join(f"{token}: {value:.6g}" for token, value in pairs)
        got = ", ".join(f"{token}: {value:.6g}" for token, value in found.top)
        raise broken(
            Rule.TOP_LOGPROBS, request.request_id, step, what=what, got=got, should_be=should_be
        )
