"""Which configuration explains what an engine answers to one request at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batchproof.triage.configurations import (
    AS_ASKED,
    Answered,
    Configuration,
    chosen_with,
    configurations,
)
from batchproof.triage.drawn import drawn_with
from batchproof.triage.noise import Noise
from batchproof.triage.scoring import Reading, Scorer

FAR_LESS = 4.0  # times the regret is less under a configuration that is preferred to rounding
NUM_PREPARED = 64  # configurations whose first answers share one pass


def explaining(scorer: Scorer, noise: Noise, answers: Sequence[Answered]) -> Configuration | None:
    """Returns the configuration under which all answers are right; None if none is found.

    As asked, if no regret exceeds rounding of the model as it is served. Else a configuration that
    leaves no larger one. Else, where the coarsest rounding explains the answers: as asked, unless a
    configuration leaves far less regret.
    """
    plain = scorer.readings(AS_ASKED, answers)
    if max(each.worst for each in plain) <= noise.tight:
        return AS_ASKED
    order = sorted(range(len(plain)), key=lambda i: _telling(plain[i]))
    ordered = [answers[i] for i in order]
    total = _total(plain) if max(each.worst for each in plain) <= noise.coarse else float("inf")
    best, least = (AS_ASKED if total < float("inf") else None), total / FAR_LESS
    shortest = min(len(e.request.prompt_token_ids) for e in plain if e.worst > noise.tight)
    tried = list(configurations(scorer.subject, ordered, shortest))
    for start in range(0, len(tried), NUM_PREPARED):
        some = tried[start : start + NUM_PREPARED]
        _prepare(scorer, some, ordered[0])
        for each in some:
            found = _readings_within(scorer, each, noise.coarse, ordered)
            if found is None:
                continue
            if max(reading.worst for reading in found) <= noise.tight:
                return _widest(scorer, each, tried, noise, ordered)
            if _total(found) < least:
                best, least = each, _total(found)
    return best or _drawn(scorer, plain)


def _widest(
    scorer: Scorer,
    found: Configuration,
    tried: Sequence[Configuration],
    noise: Noise,
    answers: Sequence[Answered],
) -> Configuration:
    """Returns the middle one of those that differ in a number alone and explain the answers as well."""
    alike = [each for each in tried if found.family and each.family == found.family]
    also = [e for e in alike if _readings_within(scorer, e, noise.tight, answers) is not None]
    if len(also) < 2:
        return found
    span = f"{also[len(also) // 2].name} (any from {also[0].value:g} to {also[-1].value:g} explains it)"
    return replace(also[len(also) // 2], name=span)


def _telling(reading: Reading) -> tuple[float, int]:
    """Returns a key by which the shortest prompts with a large regret come first."""
    return (-min(reading.worst, 1.0), len(reading.request.prompt_token_ids))


def _total(readings: Sequence[Reading]) -> float:
    return sum(sum(each.regrets) for each in readings)


def _prepare(scorer: Scorer, some: Sequence[Configuration], answered: Answered) -> None:
    """Scores one answer under configurations of the model as it is, in one pass."""
    read = [each.of(answered) for each in some if not each.changes]
    scorer.logits([each.tokens for each in read if scorer.is_scorable(each)])


def _readings_within(
    scorer: Scorer, configuration: Configuration, bound: float, answers: Sequence[Answered]
) -> list[Reading] | None:
    """Returns the readings if all are within the bound. Most configurations fail at the first."""
    found: list[Reading] = []
    for share in (slice(0, 1), slice(1, 4), slice(4, None)):
        found += scorer.readings(configuration, answers[share])
        if any(each.worst > bound for each in found):
            return None
    return found


def _drawn(scorer: Scorer, plain: Sequence[Reading]) -> Configuration | None:
    """Returns the sampling parameters that tokens were drawn with, if any explain them."""
    if any(each.wrong for each in plain):
        return None
    pairs = [(each.request.prompt_token_ids, each.completion.token_ids) for each in plain]
    scores = scorer.logits(pairs)
    asked = drawn_with([(tokens, scores[prompt, tokens]) for prompt, tokens in pairs])
    if asked is None:
        return None
    cuts = [f"top_p {asked.top_p:g}"] * (asked.top_p < 1) + [f"top_k {asked.top_k}"] * bool(asked.top_k)
    name = " and ".join([f"temperature {asked.temperature:g}", *cuts])
    return chosen_with(asked, f"tokens are drawn: about {name} by default")
