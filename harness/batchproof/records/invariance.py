"""Invariance: the grade that each engine reaches along each axis, as a record."""

from dataclasses import dataclass
from typing import Literal

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance

GradeLetter = Literal["B", "S", "E", "T", "-"]
UNMEASURED: Literal["not measured"] = "not measured"
Evidence = Literal["shown", "not shown", "by construction"]


@dataclass(frozen=True)
class AxisRecord:
    """One axis of one engine. `reason` says why it is not measured, if it is not.

    `worst` is the largest difference of a logit in units of E; None without logits, and where the
    difference is not finite.
    """

    axis: str
    grade: Literal[GradeLetter, "not measured"]
    reason: str = ""
    evidence: Evidence = "not shown"  # that the engine did what the axis is about
    worst: float | None = None
    num_comparisons: int = 0
    num_tokens: int = 0  # compared, each with its logits if there are any
    has_failed: bool = False  # not measured because serving failed: the engine lacks nothing for it


@dataclass(frozen=True)
class EngineRecord:
    """One engine on one model. With a `refusal` there are no grades: the engine does not serve the
    model, or the negative control failed."""

    engine: str
    model: str
    dtype: str
    kappa: float | None = None  # the bound of grade E, in units of E
    error_unit: float | None = None  # E
    refusal: str = ""
    axes: tuple[AxisRecord, ...] = ()


@dataclass(frozen=True)
class InvarianceRecord:
    """A measurement of engines on models, in the order in which they were given."""

    made: Provenance
    is_complete: bool  # all that was asked for was measured, on all axes
    device: str
    seed: int
    engines: tuple[EngineRecord, ...]


INVARIANCE = FileKind("invariance record", "batchproof.invariance", 1, InvarianceRecord)
