"""Rule O5: relations between two runs of one engine, which need no reference.

The strongest hold bit for bit in every dtype, because all kernel shapes stay the same: rewriting the
neighbours' contents, or what the engine served before, must not change a single bit of a request's
logits. An engine that is not repeatable (rule O0) is held to the tolerance of rule O4 instead, and
the summary says so.
"""

from __future__ import annotations

import torch

from batchproof.api import Completion
from batchproof.checks.broken import broken
from batchproof.findings.finding import Rule
from batchproof.oracle.oracle import centred
from batchproof.requirements.promises import Promise


def require_same_tokens(promise: Promise, relation: str, old: Completion, new: Completion) -> None:
    """Raises `BrokenPromise` under `promise` unless tokens and finish reasons are equal.

    `relation` says what was changed between the runs.
    """
    if (old.token_ids, old.finish_reason) != (new.token_ids, new.finish_reason):
        raise broken(
            Rule.RELATION,
            new.request_id,
            promise=promise,
            relation=relation,
            before=f"{list(old.token_ids)} ({old.finish_reason})",
            after=f"{list(new.token_ids)} ({new.finish_reason})",
        )


def require_same_logits(
    promise: Promise, relation: str, allowed: float, old: Completion, new: Completion
) -> None:
    """Raises `BrokenPromise` if centred logits differ by more than `allowed`; 0: by a single bit.

    Nothing is compared where one of the answers has no logits.
    """
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
    raise broken(
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
