"""`batchproof lab mutants`: generated mutants before the covering design, and what kills each."""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import torch

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
from batchproof_lab.forgetful import Mutant, mutants

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


def page(fates: Sequence[Fate], seed: int) -> list[str]:
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
