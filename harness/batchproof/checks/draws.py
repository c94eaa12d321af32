"""Decides whether drawn tokens have their probabilities, and whether a seed decides them (P19)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batchproof.api import Completion, Request
from batchproof.checks.broken import broken
from batchproof.findings.finding import Rule
from batchproof.oracle.choosing import sampling_of
from batchproof.oracle.oracle import Oracle
from batchproof.statistics import binomial_bound, g_test

RISK = 1e-7  # chance at which an honest engine is blamed; a test asks a few times
LEAST_EXPECTED = 25.0  # of a cell; smaller ones are taken together

Answer = tuple[int, ...]


def check_counts(
    request: Request, counts: Mapping[Answer, int], probabilities: Mapping[Answer, float]
) -> float:
    """Returns the p-value of a G-test (McDonald, "Handbook of biological statistics") of how often each
    answer was given. Raises `BrokenPromise` if it is below `RISK`."""
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
        names, observed, expected = [*names, "others"], [*observed, others], [*expected, rest]
    else:  # so few that they are counted with the rarest
        names[0] += " and others"
        observed[0] += others
        expected[0] += rest
    statistic, p_value = g_test(observed, expected)
    if p_value < RISK:
        cells = [
            f"{name}: {seen} of {total}, expected {wanted:.1f}"
            for name, seen, wanted in zip(names, observed, expected, strict=True)
        ]
        raise broken(
            Rule.FREQUENCIES,
            statistic=statistic,
            degrees=len(observed) - 1,
            p_value=p_value,
            cells=cells,
            sampling=str(sampling_of(request)),
        )
    return p_value


def require_a_difference(
    requests: Sequence[Request], before: Sequence[Completion], after: Sequence[Completion]
) -> None:
    """Checks that other seeds have given some other answer. Raises `BrokenPromise`."""
    if all(a.token_ids == b.token_ids for a, b in zip(before, after, strict=True)):
        name, tokens = requests[0].request_id, before[0].token_ids
        raise broken(Rule.SEED_IGNORED, name, num_requests=len(requests), before=tokens)


def check_seeds(
    requests: Sequence[Request],
    before: Sequence[Completion],
    after: Sequence[Completion],
    oracle: Oracle,
    relation: str,
) -> None:
    """Checks that requests with a seed are answered alike in two runs, but for the few draws that
    rounding decides. Raises `BrokenPromise`.

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
        raise broken(
            Rule.SEED,
            request.request_id,
            num_changed=len(changed),
            num_requests=len(requests),
            budget=budget,
            relation=relation,
            before=was.token_ids,
            after=now.token_ids,
        )
