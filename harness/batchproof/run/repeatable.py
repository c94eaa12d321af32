"""Rule O0: is an engine repeatable bit for bit?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from batchproof.api import Completion, EngineConfig, Request
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Workload


def is_bitwise(trial: Trial) -> bool:
    """Do a fresh engine, a second one, and one that has served the same before give the same bits for
    the same workload? Probed once in a session, by a trial of its own: that of the caller counts
    nothing of it.

    If they differ within rounding (a reused prefix changes the shapes, say), the bit-level relations
    hold "within the bound" only, and the summary says so.
    """
    return trial.lab.is_bitwise(trial.spec, trial.subject, lambda: _probe(trial))


def _probe(trial: Trial) -> bool:
    own = Trial(trial.lab, trial.spec, trial.oracle, trial.capabilities, trial.promise)
    prompts = [tuple(range(1, length)) for length in (9, 3, 14, 6, 2)]
    requests = tuple(Request(f"o0-{i}", p, 4) for i, p in enumerate(prompts))
    workload = Workload(requests, EngineConfig(max_num_seqs=3, return_logits=True))
    with own.engine(workload.config) as engine:
        first, again = (own.run(workload, engine).completions for _ in range(2))
    second = own.run(workload).completions
    bound = 2 * own.oracle.kappa * own.oracle.error.max_abs
    # Beyond the bound it is no rounding: the relations shall say so, to the bit.
    return _moved(first, second) == 0.0 and not 0.0 < _moved(first, again) <= bound


def _moved(before: Sequence[Completion], after: Sequence[Completion]) -> float:
    """The largest difference of the logits of two runs; infinite where they cannot be compared."""
    largest = 0.0
    for old, new in zip(before, after, strict=True):
        if old.logits is None or new.logits is None or old.logits.shape != new.logits.shape:
            return float("inf")
        if not torch.equal(old.logits, new.logits):
            largest = max(largest, float((old.logits - new.logits).abs().max()))
    return largest
