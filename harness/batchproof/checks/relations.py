"""Rule O5: relations between two runs of one engine, which need no reference.

The strongest are bit for bit in every dtype, because all kernel shapes stay the same: rewriting the
neighbours' contents, or what the engine served before, must not move a single bit of a request's
logits. An engine that is not repeatable at all (rule O0) is held to the tolerance of rule O4 instead,
and the summary says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from batchproof.api import Completion
from batchproof.checks.verdict import ConformanceFailure
from batchproof.oracle.oracle import centred
from batchproof.promises import Promise
from batchproof.run.trial import Trial


def require_same_bits(
    trial: Trial,
    promise: Promise,
    relation: str,
    before: Sequence[Completion],
    after: Sequence[Completion],
) -> None:
    """Answers and logits of the same requests in two runs with the same shapes.

    Raises `ConformanceFailure` with `promise` at the first difference; `relation` says what was
    changed between the runs.
    """
    is_bitwise = not trial.has_logits or trial.lab.is_bitwise(trial)
    for old, new in zip(before, after, strict=True):
        try:
            if is_bitwise or trial.oracle.subject.oracle is not None:
                _require_same_tokens(promise, relation, old, new)
            if old.logits is not None and new.logits is not None:
                _require_same_logits(trial, promise, relation, is_bitwise, old, new)
        except ConformanceFailure as failure:
            failure.found_by("relation").scene = trial.scene_of(new, old)
            raise
        trial.ledger.num_requests += 1
        trial.ledger.num_steps += len(new.token_ids)
    trial.ledger.num_workloads += 1
    if not is_bitwise:
        note = f"{trial.spec.name} on {trial.subject.name} is not repeatable bit for bit (rule O0)"
        trial.ledger.notes.append(f"{note}: relations hold within the bound of rule O4 only")


def _require_same_tokens(promise: Promise, relation: str, old: Completion, new: Completion) -> None:
    if (old.token_ids, old.finish_reason) != (new.token_ids, new.finish_reason):
        raise ConformanceFailure(
            promise,
            f"request {new.request_id!r} is answered differently {relation}",
            [
                f"before: {list(old.token_ids)} ({old.finish_reason})",
                f"after:  {list(new.token_ids)} ({new.finish_reason})",
            ],
            request_id=new.request_id,
        )


def _require_same_logits(
    trial: Trial, promise: Promise, relation: str, is_bitwise: bool, old: Completion, new: Completion
) -> None:
    assert old.logits is not None, "checked by the caller"
    assert new.logits is not None, "checked by the caller"
    if torch.equal(old.logits, new.logits):
        return
    # Without repeatable bits tokens may part at a near-tie; only what led to it can be compared.
    length = min(len(old.token_ids), len(new.token_ids))
    same = [a == b for a, b in zip(old.token_ids, new.token_ids, strict=False)]
    length = same.index(False) + 1 if False in same else length
    moved = (centred(old.logits[:length]) - centred(new.logits[:length])).abs().amax(dim=-1)
    bound = 0.0 if is_bitwise else 2 * trial.oracle.kappa * trial.oracle.error.max_abs
    if bool((moved <= bound).all()):
        return
    step = int((moved > bound).nonzero()[0]) if bool((moved > bound).any()) else 0
    raise ConformanceFailure(
        promise,
        f"request {new.request_id!r} step {step}: its logits moved by {moved[step]:.3g} {relation}",
        [
            f"allowed: {bound:.2g}" + (" (all shapes are the same)" if is_bitwise else ""),
            f"tokens before {list(old.token_ids)}, after {list(new.token_ids)}",
        ],
        new.request_id,
        step,
    )


# What a request alone would keep as well: broken only `relation`, it is that which broke it.
ABOUT_ONE_ANSWER = {Promise.P1, Promise.P2, Promise.P3, Promise.P7}


@contextmanager
def blame(promise: Promise, relation: str) -> Iterator[None]:
    """A wrong answer found inside is told as a break of `promise`: it appeared `relation`."""
    try:
        yield
    except ConformanceFailure as failure:
        if failure.promise in ABOUT_ONE_ANSWER:
            failure.promise = promise
            failure.evidence.append(f"it appeared {relation}")
        raise
