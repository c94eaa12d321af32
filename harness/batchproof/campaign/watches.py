"""One honest engine before one property test: the task of a worker, and what came out."""

from __future__ import annotations

from dataclasses import dataclass

from batchproof.campaign.findings import Effort
from batchproof.campaign.shared_laboratory import process_laboratory
from batchproof.campaign.suite_run import own_failures, run_suite
from batchproof.places import ROOT

PROFILE = "thorough"
TIME_LIMIT_S = 120.0  # cores are shared with other workers, and an honest engine ends anyway
COUNTED = {  # what the campaign calls it -> the ledger's name
    "workloads": "num_workloads",
    "answers": "num_requests",
    "tokens": "num_steps",
    "near_ties": "num_near_ties",
}


@dataclass(frozen=True, slots=True)
class Watch:
    """`function`: a conformance test, by its node id without parameters."""

    engine: str
    model: str
    dtype: str
    function: str
    seed: int
    num_examples: int


@dataclass(frozen=True, slots=True)
class Seen:
    counts: dict[str, int]
    alarms: tuple[str, ...] = ()  # whole reports


def lost(why: str) -> Seen:
    """Returns an alarm for a task whose worker raised, hung or died: nothing was judged."""
    return Seen(dict.fromkeys(COUNTED, 0), (why,))


def watch(task: Watch) -> Seen:
    """Failures are shrunk: whoever reads an alarm has to find out who is wrong."""
    effort = Effort(profile=PROFILE, max_examples=task.num_examples, shrinks=True)
    arguments = [f"{ROOT / task.function}", f"--model={task.model}", f"--hypothesis-seed={task.seed}"]
    findings = run_suite(task.engine, arguments, process_laboratory(task.dtype, TIME_LIMIT_S), effort)
    broken = [each.report for each in findings.catches if each.broken is not None]
    alarms = (*broken, *own_failures(findings))
    # The workloads of an alarm are mostly steps of shrinking: they count for nothing.
    counts = {name: 0 if alarms else findings.totals[key] for name, key in COUNTED.items()}
    return Seen(counts, alarms)
