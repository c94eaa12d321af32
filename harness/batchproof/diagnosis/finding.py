"""What a diagnosis is, and the cause that goes with a broken promise where nothing tells more."""

from __future__ import annotations

from dataclasses import dataclass, field

from batchproof.causes import Cause
from batchproof.promises import Promise

BY_PROMISE = {
    Promise.P2: Cause.CAP,
    Promise.P3: Cause.EOS,
    Promise.P4: Cause.ORDER,
    Promise.P6: Cause.MASK,
    Promise.P7: Cause.POSITION,
    Promise.P9: Cause.SCHEDULING,
    Promise.P10: Cause.LIVENESS,
    Promise.P11: Cause.ACCOUNTING,
    Promise.P12: Cause.INPUT,
    Promise.P13: Cause.CANCEL,
    Promise.P14: Cause.STREAM,
    Promise.P15: Cause.SIDE_EFFECT,
    Promise.P16: Cause.RACE,
}


@dataclass
class Diagnosis:
    """`text`: the cause in a sentence; `evidence`: a few lines that led there."""

    cause: Cause
    text: str
    evidence: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For a report."""
        return [
            f"most likely cause: {self.cause.word}: {self.text}",
            *(f"  {e}" for e in self.evidence),
        ]
