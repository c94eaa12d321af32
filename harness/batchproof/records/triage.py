"""Triage: what is wrong with a running engine."""

from dataclasses import dataclass
from typing import Literal

from batchproof.records.file_kinds import FileKind
from batchproof.records.provenance import Provenance

CLEAN: Literal["CLEAN"] = "CLEAN"  # as an honest engine at the precision that is claimed
ROUNDING: Literal["ROUNDING"] = "ROUNDING"  # as one at a coarser precision
CONFIG: Literal["CONFIG"] = "CONFIG"  # right under other settings than those that were asked for
MIXED: Literal["MIXED"] = "MIXED"  # a share of the replicas is coarser
CORRUPT: Literal["CORRUPT"] = "CORRUPT"  # tokens that no precision and no setting explains
UNDECIDED: Literal["UNDECIDED"] = "UNDECIDED"  # not honest, but it is not known what; or no answers
Verdict = Literal["CLEAN", "ROUNDING", "CONFIG", "MIXED", "CORRUPT", "UNDECIDED"]
VERDICTS: tuple[Verdict, ...] = (CLEAN, ROUNDING, CONFIG, MIXED, UNDECIDED, CORRUPT)  # worst last


@dataclass(frozen=True)
class EndpointTriage:
    """One engine on one model. `chance` is the most that an honest one shows as much evidence with;
    `belief` the share that the named cause has of the likelihood of all. `excluded` and `open` are the
    causes that the answers speak against, and those that they leave possible."""

    engine: str
    model: str
    dtype: str
    verdict: Verdict
    why: str
    evidence: tuple[str, ...] = ()
    chance: float = 1.0
    belief: float = 0.0
    excluded: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    num_requests: int = 0
    num_tokens: int = 0
    scenes: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class TriageRecord:
    """A triage of engines, in the order in which they were given. `refusals`: models that an engine
    does not serve, and why."""

    made: Provenance
    seed: int
    alpha: float
    beta: float
    found: tuple[EndpointTriage, ...]
    refusals: tuple[str, ...] = ()


@dataclass(frozen=True)
class WatchState:
    """What a watch is of, and what it knows. `pack` is a digest, also of the causes that are looked
    for. `sums` is the evidence of each, in turns; `num_left` for each probe how many of its first steps
    are still judged. `last_answer` is in Unix time; 0 before the first."""

    endpoint: str
    model: str
    pack: str
    every_s: float
    sums: tuple[float, ...]
    num_left: tuple[int, ...]
    num_turns: int = 0
    num_requests: int = 0
    num_failed: int = 0
    num_alarms: int = 0
    last_answer: float = 0.0


TRIAGE = FileKind("triage record", "batchproof.triage", 2, TriageRecord)
WATCH_STATE = FileKind("state of a watch", "batchproof.watch", 1, WatchState)
