"""Triage: what is wrong with a running engine, and the table of blinded engines that it was judged on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance


class Verdict(StrEnum):
    """What the answers of an engine are; `batchproof triage` ends with the exit status of the worst."""

    CLEAN = "CLEAN"  # every token is the best one
    ROUNDING = "ROUNDING"  # every other token is a near-tie
    CONFIG = "CONFIG"  # every token is the best one under another configuration
    CORRUPTION = "CORRUPTION"  # a token depends on what it must not, or nothing explains it


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


@dataclass(frozen=True)
class Judged:
    """A blinded engine: what it is in truth, and what triage said of it."""

    engine: str
    truth: tuple[Verdict, ...]  # any of these is right
    what: str
    said: EngineTriage

    @property
    def is_right(self) -> bool:
        """Whether the verdict is true."""
        return self.said.verdict in self.truth


@dataclass(frozen=True)
class ConfusionRecord:
    """The verdicts on blinded engines."""

    made: Provenance
    seed: int
    is_held_out: bool  # faults and variants that no rule was made on
    engines: tuple[Judged, ...]


TRIAGE = FileKind("triage record", "batchproof.triage", 1, TriageRecord)
CONFUSION = FileKind("triage confusion table", "batchproof.triage-confusion", 1, ConfusionRecord)
