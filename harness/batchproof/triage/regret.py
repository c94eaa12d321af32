"""How far an engine's tokens are from the best ones, in the oracle's float64, under a configuration.

The *regret* of a token is the best logit less its own, given the engine's own tokens before it. It is 0
for the best token; rounding of logits by e makes it 2e at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from batchproof.api import Completion, FinishReason, Request
from batchproof.checks.answers import are_known, structure_findings
from batchproof.findings.finding_text import headline
from batchproof.oracle.choosing import amplification, processed, sampling_of
from batchproof.oracle.oracle import Oracle, Scored
from batchproof.oracle.precision import Precision
from batchproof.run.registry import reference_factory
from batchproof.triage.configurations import AS_ASKED, Answered, Configuration, configurations

MOST_AT_ONCE = 4096  # tokens of one pass
COARSER = (  # than the model as it is served; what an honest engine may compute in
    Precision("float16"),
    Precision(None, is_cache_int8=True),
    Precision("bfloat16"),
    Precision("bfloat16", is_cache_int8=True),
)


@dataclass(frozen=True)
class Bounds:
    """Regrets that rounding explains, 2 kappa E, by precision, the smallest first. A constructed model
    has one of 0: no rounding bridges its margins."""

    by_precision: tuple[tuple[str, float], ...]
    unit: float | None = None  # E as served; None for a constructed model
    tight: float = 0.0  # of the model as it is served

    @property
    def coarse(self) -> float:
        """The bound of what rounding explains at all."""
        return self.by_precision[-1][1]

    def precision_of(self, regret: float) -> str:
        """The finest precision whose bound covers the regret."""
        return next((name for name, bound in self.by_precision if regret <= bound), "no precision")


def measured_bounds(oracle: Oracle) -> Bounds:
    """Measures the reference at each precision against float64. Raises `OracleError`."""
    subject = oracle.subject
    if subject.oracle is not None:
        return Bounds((("exact", 0.0),))
    oracles = {f"{subject.dtype_name}, as served": oracle}
    for precision in COARSER:
        if precision.compute != subject.dtype_name:
            oracles[str(precision)] = Oracle(subject, reference_factory(), precision)
    bounds = [(name, 2 * each.logit_bound) for name, each in oracles.items()]
    in_order = tuple(sorted(bounds, key=lambda each: each[1]))
    return Bounds(in_order, oracle.error.max_abs, 2 * oracle.logit_bound)


@dataclass(frozen=True)
class Reading:
    """One answer under a configuration. `request` is as it was asked; `worst` is the largest regret, in
    units of what penalties amplify, infinite if something else is wrong; `words` say where it is."""

    request: Request
    num_tokens: int
    worst: float = 0.0
    words: str = ""


def readings(
    oracle: Oracle, configuration: Configuration, answers: Sequence[Answered]
) -> list[Reading]:
    """One reading for each answer, in order."""
    asked = [configuration.asked(each.request) for each in answers]
    pairs = [*zip(asked, (each.completion for each in answers), strict=True)]
    wanted = [_scored(*each) for each in pairs if _is_scorable(oracle, *each)]
    scores = _scores(oracle, wanted)
    found = []
    for given, (request, answer) in zip(answers, pairs, strict=True):
        is_longer = len(request.prompt_token_ids) > len(given.request.prompt_token_ids)
        if is_longer and answer.finish_reason is FinishReason.ERROR:  # it does not fit
            found.append(Reading(given.request, 0))
        else:
            worst, words = _worst(request, answer, scores.get(_scored(request, answer)))
            found.append(Reading(given.request, len(answer.token_ids), worst, words))
    return found


def _scored(request: Request, answer: Completion) -> Scored:
    return request.prompt_token_ids, tuple(answer.token_ids)


def _is_scorable(oracle: Oracle, request: Request, answer: Completion) -> bool:
    prompt, tokens = _scored(request, answer)
    fits = len(prompt) + len(tokens) <= oracle.subject.context_len
    return fits and bool(tokens) and are_known(tokens, oracle)


def _scores(oracle: Oracle, wanted: Sequence[Scored]) -> dict[Scored, Tensor]:
    """Float64 logits of each prompt with an engine's tokens, in passes of limited size."""
    waiting = sorted(dict.fromkeys(wanted), key=lambda each: len(each[0]) + len(each[1]))
    found: dict[Scored, Tensor] = {}
    while waiting:
        longest = len(waiting[-1][0]) + len(waiting[-1][1])
        share = waiting[-max(1, MOST_AT_ONCE // longest) :]
        del waiting[-len(share) :]
        found.update(zip(share, oracle.score_all(share), strict=True))
    return found


def _worst(request: Request, answer: Completion, logits: Tensor | None) -> tuple[float, str]:
    if slip := next(structure_findings(request, answer), None):
        return float("inf"), headline(slip)
    if logits is None:
        return float("inf"), "it holds a token outside the vocabulary"
    asked = sampling_of(request)
    if asked.changes_logits:
        logits = processed(logits, request, answer.token_ids)
    taken = logits.gather(-1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    regret, step = (logits.amax(dim=-1) - taken).max(dim=0)
    words = f"token {int(step)}: {answer.token_ids[int(step)]} is {float(regret):.3g} below the best"
    return float(regret) / amplification(asked), words


def explaining_configuration(
    oracle: Oracle, bounds: Bounds, answers: Sequence[Answered]
) -> Configuration | None:
    """The configuration under which all answers are right; None if none in the table is.

    As asked, if rounding of the model as it is served explains the answers, else a configuration under
    which it does. Then the same with the coarsest rounding.
    """
    plain = readings(oracle, AS_ASKED, answers)
    worst = max(each.worst for each in plain)
    if worst <= bounds.tight:
        return AS_ASKED
    # The shortest prompts with a large regret are first: most configurations fail at them.
    order = sorted(
        range(len(plain)),
        key=lambda i: (-min(plain[i].worst, 1.0), len(plain[i].request.prompt_token_ids)),
    )
    ordered = [answers[i] for i in order]
    shortest = min(len(e.request.prompt_token_ids) for e in plain if e.worst > bounds.tight)
    tried = [*configurations(oracle.subject, ordered, shortest)]
    for bound in dict.fromkeys((bounds.tight, bounds.coarse)):
        if worst <= bound:
            return AS_ASKED
        for each in tried:
            if _are_within(oracle, each, bound, ordered):
                return each
    return None


def _are_within(
    oracle: Oracle, configuration: Configuration, bound: float, answers: Sequence[Answered]
) -> bool:
    return all(
        reading.worst <= bound
        for share in (slice(0, 1), slice(1, 4), slice(4, None))
        for reading in readings(oracle, configuration, answers[share])
    )
