"""What a failure is most likely due to: the words of a diagnosis.

A promise says what is broken for the user; a cause says where its engineer should look.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Cause(Enum):
    """Each with the mistake in a few words."""

    LEAK = "keys of another live sequence are visible"
    STALE = "what an earlier tenant, call or step left behind is read"
    MASK = "a query sees the wrong keys of its own sequence"
    POSITION = "tokens stand at the wrong positions"
    PADDING = "padding takes part: it is attended, or counted"
    ADDRESSING = "a key or value is stored to, or read from, the wrong place of the cache"
    FEED = "the wrong tokens are fed: one twice, one left out, an old one"
    CHUNK = "what a prompt's chunk boundary should carry over is lost or doubled"
    PREEMPTION = "a preempted request does not go on where it was"
    ROUTING = "tokens or logits are given to the wrong request"
    ORDER = "completions stand in the wrong order"
    DROPPED = "a request gets no completion, or more than one"
    STREAM = "events are missing, doubled or misnamed"
    CAP = "the limit on new tokens is not kept"
    EOS = "the end-of-sequence token, or the finish reason, is mishandled"
    PRECISION = "numbers are kept or computed in lower precision than the model's"
    NEAR_TIE = "two tokens are equally good within rounding"
    SCHEDULING = "who runs when: a slot idle, a step lost, a place in the queue taken, a limit passed"
    LIVENESS = "it does not come to an end"
    ACCOUNTING = "cache blocks are lost, counted twice or given out twice"
    INPUT = "a bad request is let in, altered, or taken out on others"
    CANCEL = "an abort does nothing, too much, or leaves something behind"
    SIDE_EFFECT = "something that is not the engine's own is changed"
    RACE = "the same call gives different answers"
    CRASH = "the engine raised"
    UNKNOWN = "none of the mistakes tried explains it"

    @property
    def word(self) -> str:
        """As reports print it: NEAR-TIE, SIDE EFFECT."""
        return {"NEAR_TIE": "NEAR-TIE"}.get(self.name, self.name.replace("_", " "))


@dataclass(frozen=True)
class Diagnosis:
    """`text`: the most likely cause in a sentence; `evidence`: a few lines that led there."""

    cause: Cause
    text: str
    evidence: tuple[str, ...] = ()
