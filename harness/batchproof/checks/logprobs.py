"""Decides whether logprobs are those of the model (P18), of chosen tokens and of a prompt's own.

A logprob is a logit minus the logarithm of a sum: where logits are off by up to e, it is off by up to
2 e. So logprobs are right within 2 kappa E of float64, given the engine's own tokens, and ranks and
likeliest tokens where that much decides them.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from batchproof.api import Completion, Request, TokenLogprobs
from batchproof.findings.finding import Facts, Finding, Rule, found
from batchproof.oracle.choosing import sampling_of
from batchproof.oracle.oracle import Oracle, Scored


def logprob_findings(request: Request, completion: Completion, oracle: Oracle) -> Iterator[Finding]:
    """Yields wrong logprobs of an answer and of its prompt, if the request asks for them. Those of a
    prompt may be missing here, because events have none: `presence_findings` requires them."""
    name, asked = request.request_id, sampling_of(request)
    tokens, given = completion.token_ids, completion.logprobs or ()
    if asked.logprobs is not None:
        if len(given) != len(tokens):
            yield found(Rule.LOGPROBS_MISSING, name, num_tokens=len(tokens), got=len(given))
        else:
            exact = oracle.score(request.prompt_token_ids, tokens)
            places: list[Facts] = [{"step": n, "where": f"step {n}"} for n in range(len(tokens))]
            yield from _of_all(name, places, tokens, given, exact, oracle, asked.logprobs)
    if asked.prompt_logprobs is not None and completion.prompt_logprobs is not None:
        yield from _of_prompt(request, completion.prompt_logprobs, oracle, asked.prompt_logprobs)


def _of_prompt(
    request: Request, given: Sequence[TokenLogprobs | None], oracle: Oracle, num_top: int
) -> Iterator[Finding]:
    """Requires that all prompt tokens but the first have logprobs, and that they are right."""
    name, prompt = request.request_id, request.prompt_token_ids
    rest = [each for each in given[1:] if each is not None]
    if len(given) != len(prompt) or given[0] is not None or len(rest) != len(prompt) - 1:
        lacking = [place for place, each in enumerate(given) if each is None]
        got = f"{len(given)} entries, None for {lacking}"
        yield found(Rule.PROMPT_LOGPROBS_MISSING, name, num_tokens=len(prompt), got=got)
    elif rest:
        places: list[Facts] = [{"where": f"prompt token {place}"} for place in range(1, len(prompt))]
        exact = oracle.score(*after_first(prompt))
        yield from _of_all(name, places, prompt[1:], rest, exact, oracle, num_top)


def after_first(prompt: tuple[int, ...]) -> Scored:
    """Returns a prompt as its first token and an answer to it, so that all others are scored."""
    return prompt[:1], prompt[1:]


def _of_all(
    name: str,
    places: Sequence[Facts],
    tokens: Sequence[int],
    given: Sequence[TokenLogprobs],
    exact: Tensor,
    oracle: Oracle,
    num_top: int,
) -> Iterator[Finding]:
    """Judges n tokens. `exact`: float64 logits `(n, vocab)`; `places`: what a finding says of where."""
    bound = 2 * oracle.logit_bound
    logprobs = exact.log_softmax(dim=-1)
    for place, token, one, row in zip(places, tokens, given, logprobs, strict=True):
        yield from entry_findings(name, place, token, one, row, bound, num_top)


def entry_findings(
    name: str, place: Facts, token: int, given: TokenLogprobs, exact: Tensor, bound: float, num_top: int
) -> Iterator[Finding]:
    """Judges one token: its logprob and rank, and the likeliest ones. `exact`: logprobs `(vocab,)`."""
    own = float(exact[token])
    if not abs(given.logprob - own) <= bound:  # `not`: a NaN must fail
        yield found(
            Rule.LOGPROB, name, **place, token=token, got=given.logprob, should_be=own, bound=bound
        )
    best, worst = (int((exact > own + shift).sum()) + 1 for shift in (2 * bound, -2 * bound))
    worst = max(best, worst - 1)  # it stands among those that are not below it itself
    is_wrong = token in dict(given.top) if given.rank is None else not best <= given.rank <= worst
    if is_wrong:
        should_be = str(best) if best == worst else f"{best} to {worst}"
        yield found(Rule.RANK, name, **place, token=token, got=given.rank, should_be=should_be)
    yield from _of_top(name, place, given, exact, bound, num_top)


def _of_top(
    name: str, place: Facts, given: TokenLogprobs, exact: Tensor, bound: float, num_top: int
) -> Iterator[Finding]:
    """Judges the likeliest tokens: how many, which, in what order, and their logprobs."""
    num_top = min(num_top, len(exact))
    best = exact.topk(num_top) if num_top else None
    ids, values = [token for token, _ in given.top], [value for _, value in given.top]
    what = None
    if len(ids) != num_top or len(set(ids)) != num_top:
        what = f"{num_top} different ones are asked for, but {len(set(ids))} are given"
    elif any(not 0 <= token < len(exact) for token in ids):
        what = "one is outside the vocabulary"
    elif values != sorted(values, reverse=True):
        what = "some stand out of order"
    elif any(not abs(value - float(exact[token])) <= bound for token, value in given.top):
        what = f"some logprobs are off by more than {bound:.2g}"
    elif best is not None and any(exact[token] < best.values[-1] - 2 * bound for token in ids):
        what = "one is not among them"
    if what is not None:
        pairs = [] if best is None else zip(best.indices.tolist(), best.values.tolist(), strict=True)
        should_be = ", ".join(f"{token}: {value:.6g}" for token, value in pairs)
        got = ", ".join(f"{token}: {value:.6g}" for token, value in given.top)
        yield found(Rule.TOP_LOGPROBS, name, **place, what=what, got=got, should_be=should_be)
