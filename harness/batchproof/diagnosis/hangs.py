"""Finds why a run does not end."""

from __future__ import annotations

from dataclasses import replace

from batchproof.api import EngineConfig
from batchproof.diagnosis.by_rule import BY_PROMISE
from batchproof.diagnosis.rerunner import HANG_TIME_LIMIT_S, Rerunner
from batchproof.findings.causes import Cause, Diagnosis
from batchproof.findings.failure import Failure
from batchproof.findings.finding_text import headline
from batchproof.workload.workloads import Workload


def explain_hang(rerunner: Rerunner, hang: Failure) -> Diagnosis:
    """Returns the cause of a hang: an abort, a rule of the trace broken before it, or the limits.

    Raises `OutOfTimeError`.
    """
    text = headline(hang.finding)
    runs = [run.workload for run in hang.scene.runs]
    if any(each.aborts for each in runs):
        calls = rerunner.run([replace(each, aborts=()) for each in runs])
        if calls is not None:
            facts = (text, "with nothing aborted it ends")
            return Diagnosis(Cause.CANCEL, "after an abort it does not end", facts)
    broken = rerunner.conduct_up_to_hang(runs)
    if broken is not None and broken.promise in BY_PROMISE:
        first = headline(broken)
        return Diagnosis(BY_PROMISE[broken.promise], first, (text, f"before that: {first}"))
    return Diagnosis(Cause.LIVENESS, text, tuple(_who_waits(rerunner, runs[-1])))


def _who_waits(rerunner: Rerunner, workload: Workload) -> list[str]:
    """Returns lines that name the requests that hang alone, and the limits without which they end."""
    facts: list[str] = []
    alone = [workload.together().with_requests([request]) for request in workload.requests]
    stuck = [each for each in alone if rerunner.run([each], HANG_TIME_LIMIT_S) is None]
    if not stuck:
        return ["each of its requests alone ends"]
    names = ", ".join(repr(each.requests[0].request_id) for each in stuck)
    facts.append(f"alone on a fresh engine these do not end either: {names}")
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
        if was != value and rerunner.run([stuck[0].with_config(**changes)], HANG_TIME_LIMIT_S):
            facts.append(f"with {limit} {value} instead of {was} it ends")
    return facts
