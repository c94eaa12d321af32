"""Why does it not end?"""

from __future__ import annotations

from dataclasses import replace

from batchproof.api import EngineConfig
from batchproof.diagnosis.by_promise import BY_PROMISE
from batchproof.diagnosis.stage import HANG_TIME_LIMIT_S, Stage
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.failure import Failure
from batchproof.findings.finding_text import headline
from batchproof.workload.workloads import Workload


def hang_explained(stage: Stage, hang: Failure) -> Diagnosis:
    """Does it end without the aborts? Was a rule of the trace broken on the way?"""
    text = headline(hang.finding)
    runs = [run.workload for run in hang.scene.runs]
    if any(each.aborts for each in runs):
        calls = stage.play([replace(each, aborts=()) for each in runs])
        if calls is not None:
            facts = (text, "with nothing aborted it ends")
            return Diagnosis(Cause.CANCEL, "after an abort it comes to no end", facts)
    broken = stage.conduct_up_to_hang(runs)
    if broken is not None and broken.promise in BY_PROMISE:
        first = headline(broken)
        return Diagnosis(BY_PROMISE[broken.promise], first, (text, f"before that: {first}"))
    return Diagnosis(Cause.LIVENESS, text, tuple(_who_waits(stage, runs[-1])))


def _who_waits(stage: Stage, workload: Workload) -> list[str]:
    """Which requests hang alone, and under which limits."""
    facts: list[str] = []
    alone = [workload.together().with_requests([request]) for request in workload.requests]
    stuck = [each for each in alone if stage.play([each], HANG_TIME_LIMIT_S) is None]
    if not stuck:
        return ["each of its requests alone comes to an end"]
    names = ", ".join(repr(each.requests[0].request_id) for each in stuck)
    facts.append(f"alone on a fresh engine these come to no end either: {names}")
    given, roomy = workload.config, EngineConfig()
    limits: dict[str, dict[str, int | None]] = {
        "max_num_seqs": {
            "max_num_seqs": roomy.max_num_seqs,
            "max_num_batched_tokens": max(given.max_num_batched_tokens, roomy.max_num_seqs),
        },
        "max_num_batched_tokens": {"max_num_batched_tokens": roomy.max_num_batched_tokens},
        "num_blocks": {"num_blocks": None},
        "max_model_len": {"max_model_len": None},
    }
    for limit, changes in limits.items():
        was, value = getattr(given, limit), changes[limit]
        if was != value and stage.play([stuck[0].with_config(**changes)], HANG_TIME_LIMIT_S):
            facts.append(f"with {limit} {value} instead of {was} it ends")
    return facts
