"""Compares two runs of one engine, and attributes failures to what was changed between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy

import torch

from batchproof.api import Completion
from batchproof.checks.broken import BrokenPromise, broken
from batchproof.checks.relations import require_same_logits, require_same_tokens
from batchproof.findings.finding import Rule
from batchproof.requirements.promises import Promise
from batchproof.run.failures import ConformanceFailure
from batchproof.run.repeatable import is_bitwise
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload

# Promises about one request: if one breaks after a change elsewhere, the change broke it.
ABOUT_ONE_ANSWER = {Promise.P1, Promise.P2, Promise.P3, Promise.P7}


def require_same_bits(
    trial: Trial,
    promise: Promise,
    relation: str,
    before: Sequence[Completion],
    after: Sequence[Completion],
) -> None:
    """Compares answers and logits of the same requests in two runs with the same shapes.

    `relation` says what was changed between the runs. Raises `ConformanceFailure` of `promise` at
    the first difference, or `BrokenPromise` if the runs of the answers are unknown.
    """
    has_experts = trial.subject.has_experts
    is_exact = not trial.has_logits or (not has_experts and is_bitwise(trial))
    allowed = 0.0 if is_exact else 2 * trial.oracle.kappa * trial.oracle.error.max_abs
    for old, new in zip(before, after, strict=True):
        with comparing(trial, old, new):
            if is_exact or trial.oracle.subject.oracle is not None:
                require_same_tokens(promise, relation, old, new)
            require_same_logits(promise, relation, allowed, old, new)
        trial.ledger.num_requests += 1
        trial.ledger.num_steps += len(new.token_ids)
    trial.ledger.num_workloads += 1
    if not is_exact:
        why = "the shapes of experts follow contents" if has_experts else "rule O0"
        note = f"{trial.spec.name} on {trial.subject.name} is not repeatable bit for bit ({why})"
        trial.ledger.note(f"{note}: relations hold within the bound of rule O4 only")


def check_returned_logits(trial: Trial, workloads: Sequence[Workload]) -> None:
    """Serves the calls on one engine, judges them, and requires that what an earlier one returned is
    what it was. Raises `ConformanceFailure`."""
    returned = []
    with trial.engine(workloads[0].config) as engine:
        for workload in workloads:
            served = trial.check(workload, engine).completions
            returned += [(each, deepcopy(each.logits)) for each in served]
    with trial.reporting(workloads[-1]):
        for completion, kept in returned:
            now = completion.logits
            if kept is not None and now is not None and not torch.equal(now, kept):
                raise broken(Rule.RETURNED, completion.request_id)


@contextmanager
def comparing(trial: Trial, old: Completion, new: Completion) -> Iterator[None]:
    """Turns a `BrokenPromise` inside the block into a `ConformanceFailure` with the runs of both
    answers.

    It stays a `BrokenPromise` if these runs are unknown.
    """
    try:
        yield
    except BrokenPromise as error:
        scene = trial.history.scene_of_answers(new, old)
        if scene is None:
            raise
        raise ConformanceFailure(
            trial.failure(error.finding, scene=scene, others=error.others)
        ) from None


@contextmanager
def blame(promise: Promise, relation: str) -> Iterator[None]:
    """Counts a wrong answer found inside the block as a break of `promise`, which appeared
    `relation`."""
    try:
        yield
    except ConformanceFailure as error:
        if error.failure.promise not in ABOUT_ONE_ANSWER:
            raise
        raise ConformanceFailure(error.failure.under(promise, relation)) from None
