"""The right answers to a workload, and which of its requests are bad."""

from __future__ import annotations

import sys
from math import ceil

from batchproof.api import Capability, Completion, Limits, Request
from batchproof.oracle.choosing import is_drawn
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

RightAnswers = tuple[Completion | None, ...]


def right_answers(trial: Trial, workload: Workload) -> RightAnswers:
    """Returns one answer per request, in order; None for a request that has none, because it must be
    refused, its logits are NaN, or its tokens are drawn."""
    return tuple(
        right_answer(trial, request)
        if trial.subject.has_answer(request.prompt_token_ids)
        and not is_drawn(request)
        and not is_bad(trial, workload, index)
        else None
        for index, request in enumerate(workload.requests)
    )


def right_answer(trial: Trial, request: Request) -> Completion:
    """Returns the oracle's answer to a good request."""
    token_ids, reason = trial.oracle.expected(request)
    return Completion(request.request_id, tuple(token_ids), reason)


def is_bad(trial: Trial, workload: Workload, index: int) -> bool:
    """Returns whether the request must be refused under the limits of model and config."""
    request, config = workload.requests[index], workload.config
    limits = Limits.of(trial.subject.model, config)
    # Stepped, an id may come again once it is free.
    at_once = limits.refusals(workload.requests)[index]
    reason = limits.refusal(request) if workload.needs_stepping else at_once
    num_fed = len(request.prompt_token_ids) + request.max_new_tokens - 1
    is_too_large = ceil(num_fed / config.block_size) > (config.num_blocks or sys.maxsize)
    return reason is not None or (Capability.PREEMPTION in trial.capabilities and is_too_large)


def may_tie(trial: Trial, request: Request) -> bool:
    """Returns whether some right token is so close to the second best that an honest engine may
    choose the latter.
    """
    oracle = trial.oracle
    if request.sampling is not None and request.sampling.changes_logits:
        return True  # other margins than those of the plain answer
    if oracle.subject.oracle is not None:
        return False
    answer = oracle.answer(request.prompt_token_ids, request.max_new_tokens)
    num_steps = len(oracle.expected(request)[0])
    bound = 2 * oracle.logit_bound
    return any(answer.margin(step) <= bound for step in range(num_steps))
