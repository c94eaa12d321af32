"""Judges triage on blinded engines, in worker processes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.errors import Interrupt
from batchproof.records.decode import encode
from batchproof.records.provenance import made_now
from batchproof.records.triage import (
    SAID,
    ConfusionQuestion,
    ConfusionRecord,
    EngineTriage,
    Judged,
    Said,
)
from batchproof.run.registry import EngineSpec, resolve_engine
from batchproof.triage.blinded import blinded
from batchproof.triage.engine_triage import triage_engine
from batchproof_lab.fingerprint import code_digest
from batchproof_lab.shared_laboratory import process_laboratory, torch_restored
from batchproof_lab.worker_pool import LostTask, WorkerPool

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


def confusion(
    seed: int, is_held_out: bool, num_jobs: int, time_limit_s: float, folder: Path
) -> ConfusionRecord:
    """Returns what triage says of every blinded engine, or of those until Ctrl-C. A journal in the
    folder keeps each verdict, and the same question of the same code is continued. Raises `UsageError`
    for a journal of another."""
    engines, made = blinded(seed, is_held_out), made_now()
    question = ConfusionQuestion(code_digest(), seed, is_held_out, time_limit_s)
    path = choices.writable(folder) / "triage.jsonl"
    said = {each.number: each.said for each in SAID.read(path)[1]}
    tasks = [
        Task(number, seed, is_held_out, time_limit_s)
        for number in range(len(engines))
        if number not in said
    ]
    progress = Progress("triage", "engine", len(tasks))
    with (
        suppress(Interrupt),
        SAID.append_to(path, question) as journal,
        WorkerPool(num_jobs, GRACE_S + time_limit_s) as pool,
    ):
        for task, result in pool.run(said_of, tasks):
            lost = EngineTriage(_name(task), None, refusals=(getattr(result, "why", ""),))
            said[task.number] = lost if isinstance(result, LostTask) else result
            journal.write(encode(Said(task.number, said[task.number])))
            progress.step(note=str(said[task.number].verdict))
    progress.close()
    judged = tuple(
        Judged(each.target, each.truth, each.what, said[number])
        for number, each in enumerate(engines)
        if number in said
    )
    return ConfusionRecord(made, seed, is_held_out, judged)


def said_of(task: Task) -> EngineTriage:
    """Returns what triage says of one engine, of which it sees the factory and a number."""
    target = blinded(task.seed, task.is_held_out)[task.number].target
    spec = EngineSpec(_name(task), resolve_engine(target).factory)
    lab = process_laboratory(DTYPE, CALL_LIMIT_S)
    with torch_restored(), lab.session():
        return triage_engine(lab, spec, MODELS, task.time_limit_s, task.seed)


def _name(task: Task) -> str:
    return f"engine-{task.number}"
