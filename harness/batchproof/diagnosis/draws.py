"""Causes of draws that are not as they should be: of a seed that does not decide them, of one that is
not used, and of wrong frequencies."""

from dataclasses import replace

from batchproof.api import Request
from batchproof.checks.draws import RISK
from batchproof.diagnosis.mistakes.choices import BOUNDS
from batchproof.diagnosis.reruns import Rerunner
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.finding import Failure
from batchproof.oracle.choosing import is_drawn, sampling_of
from batchproof.oracle.distributions import answer_probabilities
from batchproof.statistics import binomial_bound

FEWEST = 16  # answers of which frequencies are compared


def of_seed(_: Rerunner, failure: Failure) -> Diagnosis:
    seeds, relation = (failure.finding.facts[name] for name in ("seeds", "relation"))
    what = "draws with seed 0 alone" if seeds == (0,) else "draws depend on more than the seed: they"
    return Diagnosis(Cause.SAMPLING, f"{what} change if served {relation}")


def of_ignored_seed(_: Rerunner, failure: Failure) -> Diagnosis:
    seed, other = (int(str(failure.finding.facts[name])) for name in ("seed", "other"))
    bit = (seed ^ other).bit_length() - 1
    lost = f"bit {bit} and beyond of a seed are lost" if bit else "seeds are not used"
    return Diagnosis(Cause.SAMPLING, f"{lost}: {seed} draws as {other} does")


def of_frequencies(rerunner: Rerunner, failure: Failure) -> Diagnosis:
    """Names what requests that are equal but for seeds share, and each answer or token should have."""
    groups: dict[Request, list[tuple[int, ...]]] = {}
    oracle = rerunner.trial.oracle
    for run in failure.scene.runs:
        for request, given in zip(run.workload.requests, run.completions, strict=False):
            asked = replace(sampling_of(request), seed=None)
            groups.setdefault(replace(request, request_id="", sampling=asked), []).append(
                given.token_ids
            )
    for request, answers in groups.items():
        if not is_drawn(request):
            continue
        num, shares = len(answers), answer_probabilities(oracle, request)
        # A bound that is cut wrongly may leave one token.
        may_be_cut = not BOUNDS.keys().isdisjoint(sampling_of(request).changed)
        if num > FEWEST and max(shares.values()) < 0.9 and len({*answers}) == 1 and not may_be_cut:
            text = f"{num} requests, of other seeds or none, draw the same answer"
            return Diagnosis(Cause.SAMPLING, text)
        got = sum(len({*answer}) == 1 for answer in answers)
        chance = sum(share for answer, share in shares.items() if len({*answer}) == 1)
        if request.max_new_tokens > 1 and got > (most := binomial_bound(num, chance, RISK)):
            text = f"{got} of {num} answers repeat one token, but chance allows {most}"
            return Diagnosis(Cause.SAMPLING, f"the tokens of an answer share random numbers: {text}")
    return Diagnosis(Cause.UNKNOWN, "no mistake of the list gives these frequencies")
