"""The model sweep: every type of causal LM as a small random model, on one engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance


@dataclass(frozen=True)
class ToyRecord:
    """One small model. `worst` is the largest difference of a logit from float64, in units of E, and
    `worst_bfloat16` the same in bfloat16, None where that was not judged."""

    model_type: Annotated[str, Field(alias="type")]
    form: str  # empty: as by default
    verdict: str
    reason: str
    layers: str
    worst: float | None
    worst_bfloat16: float | None
    error_unit: float | None  # E, the reference's own worst logit error
    num_tokens: int | None

    @property
    def name(self) -> str:
        """Returns the type, with its form if it is not the default."""
        return f"{self.model_type}, {self.form}" if self.form else self.model_type


@dataclass(frozen=True)
class SweepCounts:
    """The number of models by verdict, for types in their default form and in other forms."""

    types: Mapping[str, int]
    forms: Mapping[str, int]


@dataclass(frozen=True)
class ModelSweepRecord:
    """A sweep over types of models with one engine."""

    made: Provenance
    is_complete: bool
    engine: str
    seed: int
    num_types: int
    counts: SweepCounts
    toys: tuple[ToyRecord, ...]


MODEL_SWEEP = FileKind("model sweep", "batchproof.models", 2, ModelSweepRecord)
