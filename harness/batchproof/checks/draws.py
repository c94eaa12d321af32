"""Decides whether drawn tokens have their probabilities, and whether a seed decides them (P19)."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import torch

from batchproof.api import Completion, Request
from batchproof.findings.finding import Facts, Finding, Rule, found
from batchproof.oracle.choosing import probabilities, sampling_of
from batchproof.oracle.oracle import Oracle
from batchproof.statistics import binomial_bound, g_test

RISK = 1e-7  # chance at which an honest engine is blamed; a test asks a few times
LEAST_REPEATED = 32  # tokens
LEAST_EXPECTED = 25.0  # of a cell; smaller ones are taken together

Answer = tuple[int, ...]


def cells_of(
    counts: Mapping[Answer, int], probabilities: Mapping[Answer, float]
) -> tuple[list[str], list[int], list[float]]:
    """Returns names, counts and expected counts of the cells of a G-test (McDonald, "Handbook of
    biological statistics"): the answers, the rarest of which are taken together."""
    total = sum(counts.values())
    large = sorted(
        (each for each, share in probabilities.items() if share * total >= LEAST_EXPECTED),
        key=lambda each: probabilities[each],
    )
    names = [str(each) for each in large]
    observed = [counts.get(each, 0) for each in large]
    expected = [probabilities[each] * total for each in large]
    others, rest = total - sum(observed), total - sum(expected)
    if rest >= LEAST_EXPECTED or not large:
        return [*names, "others"], [*observed, others], [*expected, rest]
    # So few that they are counted with the rarest.
    names[0] += " and others"
    observed[0] += others
    expected[0] += rest
    return names, observed, expected


def frequency_findings(
    request: Request, counts: Mapping[Answer, int], probabilities: Mapping[Answer, float]
) -> Iterator[Finding]:
    """Yields a finding if answers were given so often that chance explains it with less than `RISK`."""
    names, observed, expected = cells_of(counts, probabilities)
    statistic, p_value = g_test(observed, expected)
    if p_value < RISK:
        total = sum(observed)
        yield found(
            Rule.FREQUENCIES,
            statistic=statistic,
            degrees=len(observed) - 1,
            p_value=p_value,
            cells=[
                f"{name}: {seen} of {total}, expected {wanted:.1f}"
                for name, seen, wanted in zip(names, observed, expected, strict=True)
            ],
            sampling=str(sampling_of(request)),
        )


def ignored_seed_findings(
    requests: Sequence[Request],
    before: Sequence[Completion],
    after: Sequence[Completion],
    seed: int,
    other: int,
) -> Iterator[Finding]:
    """Yields a finding if another seed has given no other answer."""
    if all(a.token_ids == b.token_ids for a, b in zip(before, after, strict=True)):
        name, tokens = requests[0].request_id, before[0].token_ids
        facts: Facts = {"num_requests": len(requests), "seed": seed, "other": other}
        yield found(Rule.SEED_IGNORED, name, **facts, before=tokens)


def repeated_draw_findings(
    requests: Sequence[Request], completions: Sequence[Completion], oracle: Oracle
) -> Iterator[Finding]:
    """Yields a finding for each answer whose draws are its own, or another's, some tokens before: the
    shortest such distance. By chance two are equal at most as often as the likeliest token comes.

    Equal random numbers give equal tokens, or, to an engine that sorts before it draws, tokens of equal
    rank.
    """
    tokens = [torch.tensor(each.token_ids) for each in completions]
    asked = [(r.prompt_token_ids, c.token_ids) for r, c in zip(requests, completions, strict=True)]
    scores = oracle.score_all(asked)
    ranks = [
        (logits > logits.gather(1, drawn[:, None])).sum(dim=1)
        for logits, drawn in zip(scores, tokens, strict=True)
    ]
    longest = max(map(len, tokens))
    share = max(
        float(probabilities(logits, sampling_of(request)).max())
        for logits, request in zip(scores, requests, strict=True)
    )
    risk = RISK / (2 * len(tokens) ** 2 * longest)
    budgets = [binomial_bound(num, share, risk) for num in range(longest + 1)]
    for place, other in product(range(len(tokens)), repeat=2):
        for lag in range(place == other, len(tokens[place]) - LEAST_REPEATED):
            pairs = [(drawn[place][lag:], drawn[other]) for drawn in (tokens, ranks)]
            num_equal = max(int((new == old[: len(new)]).sum()) for new, old in pairs)
            num = len(tokens[place]) - lag
            if num_equal > budgets[num]:
                facts: Facts = {"num_equal": num_equal, "num": num, "lag": lag, "budget": budgets[num]}
                name, source = (completions[each].request_id for each in (place, other))
                yield found(Rule.REPEATED_DRAWS, name, **facts, other=source)
                break


def seed_findings(
    requests: Sequence[Request],
    before: Sequence[Completion],
    after: Sequence[Completion],
    oracle: Oracle,
    relation: str,
) -> Iterator[Finding]:
    """Yields a finding unless requests with a seed are answered alike in two runs, but for the few
    draws that rounding decides.

    A draw compares a race of noisy logits; where these are off by up to e, its winner changes with a
    chance below 2 e / temperature, for the distance of the first two is spread over more than 1.
    """
    pairs = [*zip(requests, before, after, strict=True)]
    changed = [each for each in pairs if each[1].token_ids != each[2].token_ids]
    coldest = min((sampling_of(each).temperature for each in requests), default=1.0)
    share = min(1.0, 4 * oracle.logit_bound / coldest)
    num_tokens = sum(len(each.token_ids) for each in before)
    budget = binomial_bound(num_tokens, share, RISK)
    if len(changed) > budget:
        request, was, now = changed[0]
        yield found(
            Rule.SEED,
            request.request_id,
            num_changed=len(changed),
            num_requests=len(requests),
            budget=budget,
            seeds=tuple(sorted({sampling_of(each).seed or 0 for each, *_ in changed})),
            relation=relation,
            before=was.token_ids,
            after=now.token_ids,
        )
