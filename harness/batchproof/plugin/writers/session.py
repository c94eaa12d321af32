"""What the writers state of a run besides the records of its tests."""

from __future__ import annotations

from dataclasses import dataclass

from batchproof.records.provenance import Provenance
from batchproof.records.verdict import Conditions
from batchproof.requirements.sets import RequirementSet


@dataclass(frozen=True)
class SessionFacts:
    """A run of pytest, as it stands. `is_complete`: no selected test is missing."""

    made: Provenance
    engines: tuple[str, ...]
    conditions: Conditions
    precision: str
    torch: str  # its version
    requirements: RequirementSet | None
    exit_status: int
    is_complete: bool
    num_left_out: int = 0  # tests that were deselected
    is_uncounted: bool = False  # tests may be left out that were never collected
    ways: tuple[str, ...] = ()  # options that leave tests out
