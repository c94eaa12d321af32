"""The wrong answers among those of a rerun, and where each first goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from batchproof.api import Completion, EngineConfig, FinishReason, Limits, Request
from batchproof.checks.answers import are_known, check_structure, check_tokens
from batchproof.checks.broken import BrokenPromise
from batchproof.diagnosis.rerunner import Call
from batchproof.oracle.choosing import is_drawn
from batchproof.oracle.oracle import Oracle, centred
from batchproof.records.trial_record import Ledger


@dataclass(frozen=True, slots=True)
class Symptom:
    """A wrong answer; `step` is its first wrong output."""

    call: int
    request: Request
    step: int
    is_content: bool  # wrong tokens or logits, as against a wrong length or finish reason


def is_bad(request: Request, oracle: Oracle) -> bool:
    """Returns whether the request must be refused."""
    return Limits.of(oracle.subject.model, EngineConfig()).refusal(request) is not None


def symptoms_of(calls: Sequence[Call], oracle: Oracle) -> list[Symptom]:
    """Returns every wrong answer, in the order of calls and requests."""
    found = []
    for number, call in enumerate(calls):
        completions = {each.request_id: each for each in call.completions}
        for request in call.workload.requests:
            completion = completions.get(request.request_id)
            symptom = completion and _symptom(number, request, completion, oracle)
            if symptom:
                found.append(symptom)
    return found


def _symptom(call: int, request: Request, completion: Completion, oracle: Oracle) -> Symptom | None:
    has_answer = oracle.subject.has_answer(request.prompt_token_ids) and not is_bad(request, oracle)
    if completion.finish_reason is FinishReason.ERROR or not has_answer or is_drawn(request):
        return None
    wrong = _first_wrong(request, completion, oracle)
    if wrong is not None:
        return Symptom(call, request, wrong, is_content=True)
    is_aborted = completion.finish_reason is FinishReason.ABORTED
    if not is_aborted and _ends_wrongly(request, completion):
        step = min(len(completion.token_ids), request.max_new_tokens)
        return Symptom(call, request, step, is_content=False)
    return None


def _first_wrong(request: Request, completion: Completion, oracle: Oracle) -> int | None:
    """Returns the first output whose token or logits rounding does not explain."""
    answer = replace(completion, token_ids=tuple(completion.token_ids)[: request.max_new_tokens])
    places = [_first_off(request, completion, oracle)]
    try:
        check_tokens(request, answer, oracle, Ledger())
    except BrokenPromise as broken:
        places.append(broken.finding.step or 0)
    return min((place for place in places if place is not None), default=None)


def _ends_wrongly(request: Request, completion: Completion) -> bool:
    logits, tokens = completion.logits, completion.token_ids
    try:
        check_structure(request, completion)
    except BrokenPromise:
        return True
    return logits is not None and len(logits) != len(tokens)


def _first_off(request: Request, completion: Completion, oracle: Oracle) -> int | None:
    """Returns the first output whose logits are further from float64 than rounding reaches."""
    logits, tokens = completion.logits, tuple(completion.token_ids)
    shape = (len(tokens), oracle.subject.vocab_size)
    if logits is None or not tokens or tuple(logits.shape) != shape or not are_known(tokens, oracle):
        return None
    exact = oracle.score(request.prompt_token_ids, tokens)
    moved = (centred(logits) - centred(exact)).abs().amax(dim=-1)
    is_off = ~(moved <= oracle.logit_bound)
    return int(is_off.nonzero()[0]) if bool(is_off.any()) else None
