"""Rule O5: relations between two runs of one engine, which need no reference.

The strongest hold bit for bit in every dtype, because all kernel shapes stay the same: rewriting the
neighbours' contents, or what the engine served before, must not change a single bit of a request's
logits. An engine that is not repeatable (rule O0) is held to the tolerance of rule O4 instead, and
the summary says so.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import chain

import torch

from batchproof.api import Capability, Completion, EngineConfig, Request, StepRecord
from batchproof.checks.broken import BrokenPromise, require
from batchproof.errors import OracleError
from batchproof.findings.finding import Failure, Finding, Rule, found
from batchproof.oracle.oracle import centred
from batchproof.requirements.promises import Promise
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload


def is_bitwise(trial: Trial) -> bool:
    """Returns whether a fresh engine, a second one, and one that has served others before agree in
    every bit, with room for all and in a tight pool.

    It is probed once in a session by a separate trial, so the counts of `trial` do not change. If
    the answers differ within rounding, for instance because a reused prefix changes the shapes, or
    sums run over keys in the order of their places, bit-level relations hold within the bound of rule
    O4 only, and the summary says so.
    """
    known, pair = trial.lab.is_bitwise, (trial.spec.name, trial.subject.name)
    if pair not in known:
        known[pair] = _probe(trial)
    return known[pair]


def _probe(trial: Trial) -> bool:
    own = trial.renewed()
    prompts = [tuple(range(1, length)) for length in (9, 3, 14, 6, 2)]
    requests = tuple(Request(f"o0-{i}", p, 4) for i, p in enumerate(prompts))
    roomy = EngineConfig(max_num_seqs=3, return_logits=True)
    tight = replace(roomy, block_size=2, num_blocks=9)  # 8 hold the largest
    configs = [roomy, tight] if Capability.PREEMPTION in trial.capabilities else [roomy]
    for config in configs:
        workload, others = (Workload(each, config) for each in (requests, requests[1:4]))
        with own.engine(config) as engine:
            first, _, again = (
                own.run(each, engine).completions for each in (workload, others, workload)
            )
        second = own.run(workload).completions
        # A difference beyond the bound is no rounding: the bit-level relations must report it.
        if _moved(first, second) != 0.0 or 0.0 < _moved(first, again) <= 2 * own.oracle.logit_bound:
            return False
    return True


def has_one_schedule(trial: Trial, traces: Sequence[Sequence[StepRecord]]) -> bool:
    """Returns whether runs of requests with the same lengths have the same shapes, by their traces.
    They may not if the engine drafts unasked: how much it then feeds depends on contents."""
    if Capability.TRACING not in trial.capabilities:
        return Capability.SPECULATION not in trial.capabilities
    shapes = [[[row.query_len for row in record.rows] for record in trace] for trace in traces]
    return all(each == shapes[0] for each in shapes)


def _moved(before: Sequence[Completion], after: Sequence[Completion]) -> float:
    """Returns the largest difference of the logits of two runs; infinite where they cannot be
    compared."""
    largest = 0.0
    for old, new in zip(before, after, strict=True):
        if old.logits is None or new.logits is None or old.logits.shape != new.logits.shape:
            return float("inf")
        if not torch.equal(old.logits, new.logits):
            largest = max(largest, float((old.logits - new.logits).abs().max()))
    return largest


def token_changes(
    promise: Promise, relation: str, old: Completion, new: Completion
) -> Iterator[Finding]:
    """Yields under `promise` if tokens or finish reasons differ. `relation`: what was changed."""
    if (old.token_ids, old.finish_reason) != (new.token_ids, new.finish_reason):
        yield found(
            Rule.RELATION,
            new.request_id,
            promise=promise,
            relation=relation,
            before=f"{list(old.token_ids)} ({old.finish_reason})",
            after=f"{list(new.token_ids)} ({new.finish_reason})",
        )


def logit_changes(
    promise: Promise, relation: str, allowed: float, old: Completion, new: Completion
) -> Iterator[Finding]:
    """Yields under `promise` if centred logits differ by more than `allowed`; 0: by a single bit.
    Nothing is compared where one of the answers has no logits."""
    if old.logits is None or new.logits is None or torch.equal(old.logits, new.logits):
        return
    # Without repeatable bits tokens may part at a near-tie; only what led to it can be compared.
    length = min(len(old.token_ids), len(new.token_ids))
    same = [a == b for a, b in zip(old.token_ids, new.token_ids, strict=False)]
    length = same.index(False) + 1 if False in same else length
    moved = (centred(old.logits[:length]) - centred(new.logits[:length])).abs().amax(dim=-1)
    if bool((moved <= allowed).all()):
        return
    step = int((moved > allowed).nonzero()[0]) if bool((moved > allowed).any()) else 0
    yield found(
        Rule.RELATION_LOGITS,
        new.request_id,
        step,
        promise,
        relation=relation,
        moved=float(moved[step]),
        allowed=allowed,
        before=old.token_ids,
        after=new.token_ids,
    )


# Promises about one request: if one breaks after a change elsewhere, the change broke it.
ABOUT_ONE_ANSWER = {Promise.P1, Promise.P2, Promise.P3, Promise.P7}


def require_same_bits(
    trial: Trial,
    promise: Promise,
    relation: str,
    before: Sequence[Completion],
    after: Sequence[Completion],
    has_same_shapes: bool = True,
) -> None:
    """Compares answers and logits of the same requests in two runs, which have the same shapes unless
    the engine may choose others: then within rounding.

    `relation` says what was changed between the runs. Raises `ConformanceFailure` of `promise` for
    the first pair that differs, or `BrokenPromise` if the runs of the answers are unknown.
    """
    has_experts = trial.subject.has_experts
    is_exact = not trial.has_logits or (has_same_shapes and not has_experts and is_bitwise(trial))
    allowed = 0.0 if is_exact else 2 * trial.oracle.kappa * trial.oracle.error.max_abs
    has_exact_tokens = is_exact or trial.subject.oracle is not None
    for old, new in zip(before, after, strict=True):
        of_tokens = token_changes(promise, relation, old, new) if has_exact_tokens else ()
        with comparing(trial, old, new):
            require(chain(of_tokens, logit_changes(promise, relation, allowed, old, new)))
        trial.ledger.num_requests += 1
        trial.ledger.num_steps += len(new.token_ids)
    trial.ledger.num_workloads += 1
    if has_same_shapes and not is_exact:
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
        require(
            found(Rule.RETURNED, completion.request_id)
            for completion, kept in returned
            if kept is not None
            and completion.logits is not None
            and not torch.equal(completion.logits, kept)
        )


@contextmanager
def comparing(trial: Trial, old: Completion, new: Completion) -> Iterator[None]:
    """Turns a `BrokenPromise` inside the block into a `ConformanceFailure` with the runs of both
    answers. It stays a `BrokenPromise` if these runs are unknown."""
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
def blame(promise: Promise, relation: str, trial: Trial | None = None) -> Iterator[None]:
    """Counts a wrong answer inside the block as a break of `promise`, which appeared `relation`. With a
    trial that is so unless a fresh engine is as wrong in that call alone, with nothing aborted."""
    try:
        yield
    except ConformanceFailure as error:
        failure = error.failure
        if failure.promise not in ABOUT_ONE_ANSWER or (trial and _is_wrong_alone(trial, failure)):
            raise
        raise ConformanceFailure(failure.under(promise, relation)) from None


def _is_wrong_alone(trial: Trial, failure: Failure) -> bool:
    try:
        trial.renewed().check(replace(failure.scene.workload, aborts=()))
    except OracleError:  # a request that was cancelled may have no right answer
        return False
    except (ConformanceFailure, HangFailure):
        return True
    return False
