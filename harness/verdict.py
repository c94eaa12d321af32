"""How a broken promise is told: one type, one page of text.

The first line says which promise, engine and model; then what was got and what should be; then the
workload, as YAML for `cases/` and ready to paste.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.promises import Promise


class ConformanceFailure(AssertionError):
    """The engine broke a promise."""

    def __init__(self, promise: Promise, finding: str, evidence: Sequence[str] = ()) -> None:
        super().__init__(finding)
        self.promise = promise
        self.finding = finding
        self.evidence = list(evidence)
        self.context: list[str] = []  # engine, model, workload: filled in by whoever knows them

    def __str__(self) -> str:
        lines = [f"{self.promise} is broken: {self.finding}"]
        lines += [f"  {line}" for line in self.evidence]
        return "\n".join([*lines, *self.context])


class EngineRaised(ConformanceFailure):
    """The engine raised where it must answer: wrong and crashed are different results."""


@dataclass
class Ledger:
    """What was compared while one test ran; it ends up in the summary."""

    num_workloads: int = 0
    num_requests: int = 0
    num_steps: int = 0  # tokens compared
    num_near_ties: int = 0  # of those, proven near-ties
    num_logits: int = 0  # answers whose logits were compared as well
    error_unit: float | None = None  # E of the model, once it was needed
    notes: list[str] = field(default_factory=list)
