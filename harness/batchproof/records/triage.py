"""Triage: what is wrong with a running engine."""

from dataclasses import dataclass
from typing import Literal

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance

# What the answers of an engine are, from what is fine to what is not.
CLEAN: Literal["CLEAN"] = "CLEAN"  # every token is the best one
ROUNDING: Literal["ROUNDING"] = "ROUNDING"  # every other token is a near-tie
CONFIG: Literal["CONFIG"] = "CONFIG"  # every token is right under another configuration
CORRUPTION: Literal["CORRUPTION"] = "CORRUPTION"  # a token depends on what it must not, or is wrong
Verdict = Literal["CLEAN", "ROUNDING", "CONFIG", "CORRUPTION"]
VERDICTS: tuple[Verdict, ...] = (CLEAN, ROUNDING, CONFIG, CORRUPTION)


@dataclass(frozen=True)
class ModelTriage:
    """One engine on one model. Margins are regrets in float64, in units of E: the best logit less that
    of the token chosen. They are None on a constructed model without near-ties."""

    model: str
    dtype: str
    verdict: Verdict
    why: str
    evidence: tuple[str, ...] = ()
    error_unit: float | None = None  # E
    worst_alone: float | None = None
    worst_batched: float | None = None
    as_coarse_as: str = ""  # the finest precision whose bound covers both
    configuration: str = ""
    num_requests: int = 0
    num_tokens: int = 0
    num_scenes: int = 0
    seconds: float = 0.0
    failure: str | None = None  # the file for `batchproof replay`


@dataclass(frozen=True)
class EngineTriage:
    """One engine. `verdict` is the worst of its models'; None if none could be served."""

    engine: str
    verdict: Verdict | None
    models: tuple[ModelTriage, ...] = ()
    refusals: tuple[str, ...] = ()


@dataclass(frozen=True)
class TriageRecord:
    """A triage of engines, in the order in which they were given."""

    made: Provenance
    seed: int
    engines: tuple[EngineTriage, ...]


TRIAGE = FileKind("triage record", "batchproof.triage", 1, TriageRecord)
