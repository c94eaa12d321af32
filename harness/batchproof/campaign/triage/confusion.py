"""Judges triage on blinded engines, in worker processes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from batchproof.campaign.shared_laboratory import process_laboratory, torch_restored
from batchproof.campaign.triage.blinded import blinded
from batchproof.campaign.triage.engine_triage import triage_engine
from batchproof.campaign.worker_pool import LostTask, WorkerPool
from batchproof.checks.switches import compute_exactly
from batchproof.cli.progress import Progress
from batchproof.records.made import made_now
from batchproof.records.triage import ConfusionRecord, EngineTriage, Judged
from batchproof.run.registry import EngineSpec, resolve_engine

MODELS = ("gpt2-hash", "llama-twins")  # what eligible faults show on
DTYPE = "float32"
CALL_LIMIT_S = 60.0
GRACE_S = 600.0  # of a worker: it starts, and learns what is known of the models


@dataclass(frozen=True)
class Task:
    """One engine of the list that seed and half make."""

    number: int
    seed: int
    is_held_out: bool
    time_limit_s: float


def confusion(seed: int, is_held_out: bool, num_jobs: int, time_limit_s: float) -> ConfusionRecord:
    """Returns what triage says of every blinded engine."""
    engines = blinded(seed, is_held_out)
    tasks = [Task(number, seed, is_held_out, time_limit_s) for number in range(len(engines))]
    progress = Progress("triage", "engine", len(engines))
    said: dict[int, EngineTriage] = {}
    with WorkerPool(num_jobs, GRACE_S + time_limit_s) as pool:
        for task, result in pool.run(said_of, tasks):
            lost = EngineTriage(_name(task), None, refusals=(getattr(result, "why", ""),))
            said[task.number] = lost if isinstance(result, LostTask) else result
            progress.step(note=str(said[task.number].verdict))
    progress.close()
    judged = tuple(
        Judged(each.target, each.truth, each.what, said[number]) for number, each in enumerate(engines)
    )
    return ConfusionRecord(made_now(), seed, is_held_out, judged)


def said_of(task: Task) -> EngineTriage:
    """Returns what triage says of one engine, of which it sees the factory and a number."""
    target = blinded(task.seed, task.is_held_out)[task.number].target
    spec = EngineSpec(_name(task), resolve_engine(target).factory)
    lab = process_laboratory(DTYPE, CALL_LIMIT_S)
    with torch_restored(), lab.session():
        compute_exactly()
        found = triage_engine(lab, spec, MODELS, task.time_limit_s, task.seed)
    return replace(
        found, models=tuple(replace(each, seconds=round(each.seconds, 1)) for each in found.models)
    )


def _name(task: Task) -> str:
    return f"engine-{task.number}"
