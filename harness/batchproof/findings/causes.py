"""Causes of a failure, and the diagnosis that names one.

A promise says what is broken for the user; a cause says where the engine's author should look.
"""

from dataclasses import dataclass
from enum import Enum


class Cause(Enum):
    """A cause, with the mistake in a few words."""

    LEAK = "keys of another live sequence are visible"
    STALE = "state of an earlier request, call or step is read"
    MASK = "a query sees the wrong keys of its own sequence"
    POSITION = "tokens have the wrong positions"
    PADDING = "padding is attended or counted"
    ADDRESSING = "a key or value is written to, or read from, the wrong place in the cache"
    FEED = "the wrong tokens are fed: one twice, one missing, an old one"
    CHUNK = "state that a chunk boundary should carry over is lost or doubled"
    STATE = "a recurrent state is lost, doubled, late, or another sequence's"
    PREEMPTION = "a preempted request does not resume where it stopped"
    ROUTING = "tokens or logits are given to the wrong request"
    ORDER = "completions are in the wrong order"
    DROPPED = "a request gets no completion, or more than one"
    STREAM = "events are missing, doubled or mislabelled"
    CAP = "the limit on new tokens is exceeded or not reached"
    EOS = "the end-of-sequence token, or the finish reason, is mishandled"
    PRECISION = "values are stored or computed in lower precision than the model's"
    NEAR_TIE = "two tokens are equally good within rounding"
    SCHEDULING = (
        "a slot stays idle, a step is lost, a request overtakes another, or a limit is exceeded"
    )
    LIVENESS = "a run does not end"
    ACCOUNTING = "cache blocks are lost, counted twice or assigned twice"
    INPUT = "a bad request is accepted, altered, or harms others"
    SAMPLING = "a token is not chosen by its request's own parameters"
    LOGPROBS = "logprobs are of another row, step or distribution"
    SPECULATION = "a rejected draft stays, an accepted one is lost, or one is not verified"
    ADAPTER = "an adapter is left out, in part or whole, or is another request's or an earlier one"
    GRAMMAR = "a grammar is not followed, is a step behind or ahead, or is another request's"
    LIFECYCLE = "weights, keys or requests of before a sleep, an update or a clearing are still used"
    SIZE = "a counter, a ring or a table is too small for what it holds"
    SHAPES = "an order of summation depends on the shapes of the batch"
    CANCEL = "an abort does nothing, too much, or leaves something behind"
    SIDE_EFFECT = "the engine changes something outside itself"
    RACE = "the same call gives different answers"
    CRASH = "the engine raised an exception"
    UNKNOWN = "no mistake that was tried explains it"

    @property
    def word(self) -> str:
        return {"NEAR_TIE": "NEAR-TIE"}.get(self.name, self.name.replace("_", " "))


@dataclass(frozen=True)
class Diagnosis:
    """The most likely cause: `text` is a sentence, `evidence` the lines that support it."""

    cause: Cause
    text: str
    evidence: tuple[str, ...] = ()
