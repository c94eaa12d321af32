"""Counts of what was compared while one test ran, for the summary."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Counters and notes, filled in by the trial and its checks."""

    num_runs: int = 0  # workloads given to an engine, judged or not
    num_workloads: int = 0  # judged
    num_requests: int = 0
    num_steps: int = 0  # tokens compared
    num_near_ties: int = 0  # of those, proven near-ties
    num_logits: int = 0  # answers whose logits were compared as well
    error_unit: float | None = None  # E of the model, once it was needed
    release: str | None = None  # the engine's name and version, if it says so
    precision: str = ""  # declared for the engine; empty: that of the model
    conventions: list[str] = field(default_factory=list)  # and settings, in the engine's own words
    notes: list[str] = field(default_factory=list)
