"""The journal of a campaign: a line for each finished task."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from batchproof.records.decode import encode
from batchproof.records.journal import JournalKind
from batchproof.records.provenance import Provenance


@dataclass(frozen=True)
class Question:
    """What a campaign asks, and the digest of the code it asks of: together they determine each task
    and its outcome, so only lines of equal questions are added up.
    """

    campaign: str
    asked: Mapping[str, object]
    code: str

    @property
    def digest(self) -> str:
        """Returns what the journals of this question have in their names."""
        return hashlib.sha256(json.dumps(encode(self), sort_keys=True).encode()).hexdigest()[:12]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Question) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@dataclass(frozen=True)
class Sitting:
    """One process that worked on a campaign. `wanted`: workloads in each dtype, of honest engines."""

    id: str
    shard: str
    made: Provenance
    wanted: int = 0

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True)
class Line:
    """A sitting that begins, an outcome, or a worker that was killed from outside and is replaced."""

    key: str = ""  # of the task
    outcome: object = None
    killed: str = ""
    sitting: Sitting | None = None


CAMPAIGN = JournalKind("batchproof_lab/1", Question, Line)
