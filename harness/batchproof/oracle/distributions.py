"""Distributions that rounding does not blur: parameters of draws, and the probabilities they give."""

from math import exp, sqrt

from torch import Tensor

from batchproof.api import Request
from batchproof.oracle.choosing import probabilities, processed, sampling_of
from batchproof.oracle.oracle import Oracle, Prompt

MOST_LIKELIEST = 16
SHARE = 0.7  # nats by which the likeliest token leads
BLUR = 0.1  # of the standard error of a share


def flat_enough(oracle: Oracle, prompt: Prompt, num_draws: int) -> tuple[float, int]:
    """Returns a temperature and a top_k for draws of the first token behind a prompt.

    The likeliest token leads by `SHARE` nats, or by less: the temperature is so high that rounding of
    logits by kappa E moves a share by no more than a tenth of what chance does among `num_draws`. Which
    tokens are the k likeliest is beyond rounding; k is 0, all of them, if no k is.
    """
    ordered, off = _ordered_logits(oracle, prompt), 2 * oracle.logit_bound
    leads = ordered[:-1] - ordered[1:]
    # Of two tokens, wrong draws may have the right shares.
    clear = [k for k in range(3, MOST_LIKELIEST) if leads[k - 1] > 2 * off]
    temperature = max(float(leads[0]) / SHARE, _least_temperature(oracle, num_draws))
    return temperature, clear[0] if clear else 0


def top_p_of(oracle: Oracle, prompt: Prompt, temperature: float) -> float:
    """Returns the highest top_p that cuts the distribution of the first token in the middle of one of
    the likeliest tokens' shares, where rounding cannot exchange it for the next; 1 if there is no
    such place."""
    ordered, off = _ordered_logits(oracle, prompt), 2 * oracle.logit_bound
    shares = (ordered / temperature).softmax(dim=-1)
    for k in range(MOST_LIKELIEST, 0, -1):
        if ordered[k] - ordered[k + 1] > 2 * off:
            return float(shares[:k].sum() + shares[k] / 2)
    return 1.0


def min_p_of(oracle: Oracle, prompt: Prompt, temperature: float, likeliest: int) -> float:
    """Returns a min_p that leaves so many of the likeliest first tokens, half way to the next; 0 leaves
    all."""
    if not likeliest:
        return 0.0
    ordered = _ordered_logits(oracle, prompt)
    last, next_ = ((ordered[k] - ordered[0]).item() / temperature for k in (likeliest - 1, likeliest))
    return exp((last + next_) / 2)


def top_p_within(oracle: Oracle, prompt: Prompt, temperature: float, likeliest: int) -> float:
    """Returns a top_p that cuts so many of the likeliest first tokens, when only they are left, in the
    middle of the last but one's share; 1 leaves all."""
    if not likeliest:
        return 1.0
    shares = (_ordered_logits(oracle, prompt)[:likeliest] / temperature).softmax(dim=-1)
    return float(shares[:-2].sum() + shares[-2] / 2)


def two_tokens(oracle: Oracle, prompt: Prompt, num_draws: int) -> tuple[frozenset[int], float]:
    """Returns the two likeliest tokens behind a prompt, and a temperature at which either is likely,
    also behind each of them."""
    logits = _first_logits(oracle, prompt)
    tokens = logits.topk(2).indices.tolist()
    behind = [oracle.score(prompt, (token, 0))[1] for token in tokens]
    leads = [abs(float(each[tokens[0]] - each[tokens[1]])) for each in (logits, *behind)]
    return frozenset(tokens), max(max(leads) / SHARE, _least_temperature(oracle, num_draws))


def answer_probabilities(oracle: Oracle, request: Request) -> dict[tuple[int, ...], float]:
    """Returns the probability of each answer, of `max_new_tokens` tokens, to a request whose tokens are
    drawn, by the answer; those of 0 are left out."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(request.max_new_tokens):
        found = {
            (*answer, token): before * float(share)
            for answer, before in found.items()
            for token, share in enumerate(_next_shares(oracle, request, answer))
            if share > 0
        }
    return found


def _next_shares(oracle: Oracle, request: Request, answer: tuple[int, ...]) -> Tensor:
    fed = (*answer, 0)  # the last is not looked at
    logits = processed(oracle.score(request.prompt_token_ids, fed), request, fed)
    return probabilities(logits[-1:], sampling_of(request))[0]


def _first_logits(oracle: Oracle, prompt: Prompt) -> Tensor:
    return oracle.score(prompt, (0,))[0]


def _ordered_logits(oracle: Oracle, prompt: Prompt) -> Tensor:
    return _first_logits(oracle, prompt).sort(descending=True).values


def _least_temperature(oracle: Oracle, num_draws: int) -> float:
    return 2 * oracle.logit_bound * sqrt(num_draws) / BLUR
