"""One honest engine on one property test: the task of a worker, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass

from batchproof.places import ROOT
from batchproof.records.honest import HonestCounts
from batchproof_lab.shared_laboratory import process_laboratory
from batchproof_lab.suite_outcome import Effort
from batchproof_lab.suite_run import own_failures, run_suite

PROFILE = "thorough"
TIME_LIMIT_S = 120.0  # cores are shared with other workers, and an honest engine ends anyway


@dataclass(frozen=True, slots=True)
class HonestTask:
    """One engine, model, dtype, seed and test. `function` is a conformance test, by its node id
    without parameters.
    """

    engine: str
    model: str
    dtype: str
    function: str
    seed: int
    num_examples: int

    @property
    def key(self) -> str:
        """Returns what identifies the task within its question."""
        return f"{self.engine} on {self.model} in {self.dtype}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class HonestOutcome:
    """What a task counted. `alarms` holds whole reports."""

    task: HonestTask
    counts: HonestCounts
    alarms: tuple[str, ...] = ()


def judge_honest(task: HonestTask) -> HonestOutcome:
    """Runs the suite on an honest engine. Failures are shrunk, because a person reads an alarm."""
    effort = Effort(profile=PROFILE, max_examples=task.num_examples, shrinks=True)
    arguments = [f"{ROOT / task.function}", f"--model={task.model}", f"--hypothesis-seed={task.seed}"]
    findings = run_suite(task.engine, arguments, process_laboratory(task.dtype, TIME_LIMIT_S), effort)
    broken = [each.report for each in findings.catches if each.broken is not None]
    alarms = (*broken, *own_failures(findings))
    if alarms:  # their workloads are mostly steps of shrinking, and count for nothing
        return HonestOutcome(task, HonestCounts(tasks=1), alarms)
    return HonestOutcome(
        task,
        HonestCounts(
            tasks=1,
            workloads=findings.totals["num_workloads"],
            answers=findings.totals["num_requests"],
            tokens=findings.totals["num_steps"],
            near_ties=findings.totals["num_near_ties"],
        ),
    )
