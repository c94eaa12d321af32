"""Causes of draws that are not as they should be: of a seed that does not decide them, of one that is
not used, and of wrong frequencies."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, zip_longest

from batchproof.api import Request
from batchproof.checks.draws import RISK
from batchproof.diagnosis.hypotheses import UNJUDGED
from batchproof.diagnosis.mistakes.choices import BOUNDS
from batchproof.diagnosis.mistakes.frequencies import frequency_mistakes
from batchproof.diagnosis.reruns import (
    SHOWN,
    Call,
    OutOfTimeError,
    Rerunner,
    Reruns,
    Symptom,
    is_bad,
    only,
)
from batchproof.diagnosis.story import just_before
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.finding import Failure
from batchproof.oracle.choosing import is_drawn, sampling_of
from batchproof.oracle.distributions import answer_probabilities
from batchproof.statistics import binomial_bound

# Limits that nothing runs against.
ROOMY = {"num_blocks": None, "prefix_caching": False, "max_num_batched_tokens": 2048}
FEWEST = 16  # answers of which frequencies are compared


def of_seed(rerunner: Rerunner, failure: Failure) -> Diagnosis:
    """Says what draws depend on besides their seed: without which they are those of the request alone,
    and what happened just before the first other one."""
    seeds, relation = (failure.finding.facts[name] for name in ("seeds", "relation"))
    what = "draws with seed 0 alone" if seeds == (0,) else "draws depend on more than the seed: they"
    text = f"{what} change if served {relation}"
    drawn = DrawnAlone(rerunner, failure.finding.request_id)
    for calls in rerunner.reruns(failure.scene):
        for symptom in drawn.changed(calls)[:1]:
            reruns = Reruns(rerunner, calls, symptom, symptoms_of=lambda calls, _: drawn.changed(calls))
            is_of_drafts = reruns.is_right_without_drafts()
            with suppress(OutOfTimeError):
                reruns.change()
            needs = ["without speculation"] if is_of_drafts else []
            needs += [each.value for each in SHOWN if reruns.is_right.get(each)]
            before = just_before(calls[symptom.call], symptom.request.request_id, symptom.step)
            more = [f"they are as alone {' or '.join(needs)}"] if needs else []
            more += [before] if before else []
            return Diagnosis(Cause.SAMPLING, "; ".join((text, *more)), tuple(reruns.facts))
    return Diagnosis(Cause.SAMPLING, text)


class DrawnAlone:
    """The answers of requests with seeds, each alone on an engine that has room."""

    def __init__(self, rerunner: Rerunner, first: str | None) -> None:
        self._rerunner = rerunner
        self._first = first  # whose symptom comes first
        self._known: dict[Request, tuple[int, ...]] = {}

    def changed(self, calls: Sequence[Call]) -> list[Symptom]:
        """Returns a symptom for each request with a seed that is drawn otherwise here."""
        found = [each for number, call in enumerate(calls) for each in self._in(number, call)]
        return sorted(found, key=lambda each: each.request.request_id != self._first)

    def _in(self, number: int, call: Call) -> Iterator[Symptom]:
        for request in call.workload.requests:
            given, is_seeded = (
                call.completion(request.request_id),
                sampling_of(request).seed is not None,
            )
            if given and is_seeded and given.finish_reason not in UNJUDGED:
                pairs = zip_longest(given.token_ids, self._of(call, request, tuple(given.token_ids)))
                steps = (step for step, (got, alone) in enumerate(pairs) if got != alone)
                yield from (Symptom(number, request, at, is_content=True) for at in islice(steps, 1))

    def _of(self, call: Call, request: Request, given: tuple[int, ...]) -> tuple[int, ...]:
        if request not in self._known:
            again = None
            if not is_bad(request, self._rerunner.trial.oracle):
                again = self._rerunner.run([only(call.workload, request).with_config(**ROOMY)])
            self._known[request] = tuple(again[0].completions[0].token_ids) if again else given
        return self._known[request]


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
            return Diagnosis(
                Cause.SAMPLING, f"{num} requests, of other seeds or none, draw the same answer"
            )
        firsts = [each[0] for each in answers]
        mistake, *rivals = (num > FEWEST and frequency_mistakes(oracle, request, firsts)) or [""]
        if mistake:
            asked = sampling_of(request)
            values = ", ".join(f"{name}={getattr(asked, name)!r}" for name in asked.changed)
            lines = ["draws with this mistake have these frequencies"]
            lines += [f"as well explained by: {'; '.join(rivals)}"] if rivals else []
            text = f"{mistake} ({num} requests with {values})"
            return Diagnosis(Cause.SAMPLING, text, tuple(lines))
        got, chance = (
            sum(share for answer, share in found if len({*answer}) == 1)
            for found in (((each, 1) for each in answers), shares.items())
        )
        if request.max_new_tokens > 1 and got > (most := binomial_bound(num, chance, RISK)):
            text = f"{got} of {num} answers repeat one token, but chance allows {most}"
            return Diagnosis(Cause.SAMPLING, f"the tokens of an answer share random numbers: {text}")
    return Diagnosis(Cause.UNKNOWN, "no mistake of the list gives these frequencies")
