"""`batchproof lab mutants`: generated mutants before the covering design, and what kills each.

A mutant of the paged teaching engine forgets one thing that a request asked for once one event has
befallen it. The covering design must kill each of them.
"""

import argparse
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from batchproof.api import EngineConfig, Request, RowRecord, SamplingParams, StepRecord, TokenEvent
from batchproof.cli import choices
from batchproof.cli.progress import Progress
from batchproof.records.file_kinds import replace_text
from batchproof.records.provenance import made_now
from batchproof.records.texts import header, line
from batchproof.requirements.promises import Promise
from batchproof.run.devices import exact_device, num_threads
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.laboratory import Laboratory
from batchproof.run.meeting import Meetings
from batchproof.run.registry import EngineSpec
from batchproof.run.trial import Trial
from batchproof_engines.ragged.scheduler import SchedulerOutput, Sequence
from batchproof_engines.ragged_paged.engine import RaggedPagedEngine
from batchproof_engines.ragged_paged.scheduler import PagedScheduler

# Whether an event befalls a row's sequence in a step.
EVENTS: dict[str, Callable[["ForgetfulScheduler", SchedulerOutput, RowRecord], bool]] = {
    "a preemption": lambda scheduler, _, row: row.request_id in scheduler.ever_preempted,
    "a chunk of its prompt": lambda _, __, row: not row.is_sampled,
    "a prefix hit": lambda _, plan, row: row.request_id in plan.admitted and row.context_len > 0,
    "a wait for a slot": lambda scheduler, _, row: row.request_id in scheduler.ever_waited,
    "a rejected draft": lambda _, __, row: row.num_accepted < row.num_drafted,
    "an accepted draft": lambda _, __, row: row.num_accepted > 0,
    "an abort of another": lambda scheduler, _, __: scheduler.has_aborted,
    "a row before its own": lambda _, plan, row: plan.rows[0] is not row,
    "a newcomer": lambda _, plan, row: bool({*plan.admitted} - {row.request_id}),
    "an end of another": lambda scheduler, _, __: scheduler.has_finished,
}
OF_REQUESTS = ("eos_token_ids", "max_new_tokens")
OF_SAMPLING = tuple(each.name for each in fields(SamplingParams))
# A request with parameters is never drafted here.
NEVER = {*product(("a rejected draft", "an accepted draft"), OF_SAMPLING)}


def forgotten(request: Request, name: str) -> Request:
    """Returns the request without what it asked for under this name; with a cap, one token more."""
    if name == "max_new_tokens":
        return replace(request, max_new_tokens=request.max_new_tokens + 1)
    if name == "eos_token_ids":
        return replace(request, eos_token_ids=frozenset())
    if request.sampling is None:
        return request
    plain = getattr(SamplingParams(), name)
    return replace(request, sampling=replace(request.sampling, **{name: plain}))


class ForgetfulScheduler(PagedScheduler):
    event: str
    name: str

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.ever_preempted: set[str] = set()
        self.ever_waited: set[str] = set()
        self.has_aborted: bool = False
        self.has_finished: bool = False
        self._forgotten: set[Sequence] = set()

    def abort(self, request_id: str) -> bool:
        was_live = super().abort(request_id)
        self.has_aborted |= was_live
        return was_live

    def update(self, plan: SchedulerOutput, token_ids: Seq[int]) -> tuple[list[TokenEvent], StepRecord]:
        self.ever_preempted |= {*plan.preempted}
        happened = EVENTS[self.event]
        for (sequence, _), row in zip(plan.scheduled, plan.rows, strict=True):
            if happened(self, plan, row) and sequence not in self._forgotten:
                self._forgotten.add(sequence)
                sequence.request = forgotten(sequence.request, self.name)
        events, record = super().update(plan, token_ids)
        self.ever_waited |= {*record.waiting}
        self.has_finished |= bool(record.finished)
        return events, record


@dataclass(frozen=True)
class Mutant:
    """A factory of an engine that forgets `name` after `event`."""

    event: str
    name: str

    def __call__(self, model: PreTrainedModel, config: EngineConfig) -> RaggedPagedEngine:
        kinds = {"event": self.event, "name": self.name}
        scheduler = type("Scheduler", (ForgetfulScheduler,), kinds)
        engine = type("Engine", (RaggedPagedEngine,), {"scheduler_class": scheduler})
        return engine(model, config)


def mutants() -> Iterator[Mutant]:
    for event, name in product(EVENTS, (*OF_REQUESTS, *OF_SAMPLING)):
        if (event, name) not in NEVER:
            yield Mutant(event, name)


MODEL = "gpt2-random"  # quick to compute
TIME_LIMIT_S = 10.0  # of an engine call


class Fate(NamedTuple):
    """What came of a mutant: what its failure needs, or None if it survived."""

    mutant: Mutant
    needs: str | None
    num_served: int  # workloads before the one that failed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    choices.add_seed(parser)
    choices.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 if every mutant is killed, else 1."""
    everyone = [*mutants()]
    progress = Progress("mutants", "mutant", len(everyone))
    fates = []
    with exact_device("cpu") as device, num_threads(1):
        lab = Laboratory(device, torch.float32, TIME_LIMIT_S)
        for mutant in everyone:
            fates.append(fate(lab, mutant, arguments.seed))
            progress.step(1, f"{mutant.name} after {mutant.event}")
    progress.close()
    folder = choices.writable(arguments.output)
    replace_text(folder / "mutants.md", "\n".join(page(fates, arguments.seed)) + "\n")
    survivors = [each for each in fates if each.needs is None]
    print(f"{len(fates) - len(survivors)} of {len(fates)} mutants killed")
    return int(bool(survivors))


def fate(lab: Laboratory, mutant: Mutant, seed: int) -> Fate:
    """Serves the design to a mutant until an answer is wrong."""
    spec = EngineSpec(f"{mutant.name} after {mutant.event}", mutant)
    oracle = lab.oracle(MODEL)
    trial = Trial(lab, spec, oracle, lab.capabilities(spec, oracle.subject), Promise.P1)
    met = Meetings(trial, seed)
    try:
        met.serve_design()
        met.serve_missing()
    except (ConformanceFailure, HangFailure) as failure:
        finding = failure.failure.finding
        return Fate(mutant, f"{finding.rule.id} {finding.appeared or ''}".strip(), met.num_served)
    return Fate(mutant, None, met.num_served)


def page(fates: Seq[Fate], seed: int) -> list[str]:
    killed = [each for each in fates if each.needs is not None]
    return [
        "# Generated mutants before the covering design",
        "",
        *made_now().lines(),
        f"* seed {seed}, model {MODEL}: {len(killed)} of {len(fates)} killed",
        "",
        "Each mutant of the paged teaching engine forgets one thing that a request asked for once an",
        "event has befallen it. The last column says how many workloads it answered right before.",
        "",
        *header("forgets", "after", "killed by", "workloads"),
        *(
            line(
                each.mutant.name, each.mutant.event, each.needs or "**survived**", str(each.num_served)
            )
            for each in fates
        ),
    ]
