"""Rule O0: whether an engine is repeatable bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from batchproof.api import Completion, EngineConfig, Request
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload


def is_bitwise(trial: Trial) -> bool:
    """Returns whether a fresh engine, a second one, and one that has served the same before agree in
    every bit.

    It is probed once in a session by a separate trial, so the counts of `trial` do not change. If
    the answers differ within rounding, for instance because a reused prefix changes the shapes,
    bit-level relations hold within the bound of rule O4 only, and the summary says so.
    """
    return trial.lab.is_bitwise(trial.spec, trial.subject, lambda: _probe(trial))


def _probe(trial: Trial) -> bool:
    own = trial.renewed()
    prompts = [tuple(range(1, length)) for length in (9, 3, 14, 6, 2)]
    requests = tuple(Request(f"o0-{i}", p, 4) for i, p in enumerate(prompts))
    workload = Workload(requests, EngineConfig(max_num_seqs=3, return_logits=True))
    with own.engine(workload.config) as engine:
        first, again = (own.run(workload, engine).completions for _ in range(2))
    second = own.run(workload).completions
    bound = 2 * own.oracle.kappa * own.oracle.error.max_abs
    # A difference beyond the bound is no rounding: the bit-level relations must report it.
    return _moved(first, second) == 0.0 and not 0.0 < _moved(first, again) <= bound


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
