"""Why does it not end?"""

from __future__ import annotations

from dataclasses import replace

from batchproof.api import EngineConfig
from batchproof.causes import Cause
from batchproof.diagnosis.finding import BY_PROMISE, Diagnosis
from batchproof.diagnosis.stage import HANG_TIME_LIMIT_S, Stage
from batchproof.errors import EngineHang
from batchproof.workload.workloads import Workload


def hang_explained(stage: Stage, hang: EngineHang) -> Diagnosis:
    """Does it end without the aborts? Was a rule of the trace broken on the way?"""
    text = str(hang).splitlines()[0]
    runs = [run.workload for run in hang.scene.runs] if hang.scene else []
    if any(each.aborts for each in runs):
        calls = stage.play([replace(each, aborts=()) for each in runs])
        if calls is not None:
            return Diagnosis(
                Cause.CANCEL,
                "after an abort it comes to no end",
                [text, "with nothing aborted it ends"],
            )
    broken = stage.conduct_up_to_hang(runs) if runs else None
    if broken is not None and broken.promise in BY_PROMISE:
        before = f"before that: {broken.finding}"
        return Diagnosis(BY_PROMISE[broken.promise], broken.finding, [text, before])
    return Diagnosis(Cause.LIVENESS, text, _who_waits(stage, runs[-1]) if runs else [])


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
