"""What a check finds: a broken promise, the rule that shows it, and the facts, as values without
text.

`findings.finding_text` renders a finding; nothing reads the rendered text back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Self

from batchproof.findings.causes import Cause
from batchproof.requirements.promises import Promise

Facts = dict[str, Any]  # as a check gives them
Fact = None | bool | int | float | str | tuple["Fact", ...]


class Rule(Enum):
    """Every rule that a check can find broken: its id, its promise unless a finding states another,
    and the cause that it names by itself, if any."""

    # the answers of one call (`checks.answers`, `checks.contract_types`)
    RETURN_TYPE = ("return-type", Promise.P4)
    COMPLETION_TYPE = ("completion-type", Promise.P4)
    COMPLETION_FIELD = ("completion-field", Promise.P4)
    COUNT = ("count", Promise.P4)
    ORDER = ("order", Promise.P4, Cause.ORDER)
    STRANGER = ("stranger", Promise.P4, Cause.ROUTING)
    TWICE = ("twice", Promise.P4, Cause.ROUTING)
    MISSING = ("missing", Promise.P4, Cause.DROPPED)
    SURPLUS = ("surplus", Promise.P4, Cause.DROPPED)
    GOOD_REFUSED = ("good-refused", Promise.P12)
    ABORTED_UNASKED = ("aborted-unasked", Promise.P13, Cause.CANCEL)
    CAP = ("cap", Promise.P2)
    SHORT = ("short", Promise.P2)
    EOS = ("eos", Promise.P3)
    FINISH_REASON = ("finish-reason", Promise.P3)
    VOCABULARY = ("vocabulary", Promise.P1)
    TOKEN = ("token", Promise.P1)
    CHOICE = ("choice", Promise.P1)
    NEAR_TIES = ("near-ties", Promise.P1)
    LOGITS_MISSING = ("logits-missing", Promise.P1)
    LOGITS_SHAPE = ("logits-shape", Promise.P1)
    LOGITS_FINITE = ("logits-finite", Promise.P1)
    LOGITS = ("logits", Promise.P1)
    LOGITS_RMS = ("logits-rms", Promise.P1)
    # what requests ask for besides (`checks.choices`, `checks.logprobs`, `checks.draws`)
    PROCESSED = ("processed", Promise.P19, Cause.SAMPLING)
    FORBIDDEN = ("forbidden", Promise.P19, Cause.SAMPLING)
    SEED = ("seed", Promise.P19, Cause.SAMPLING)
    SEED_IGNORED = ("seed-ignored", Promise.P19, Cause.SAMPLING)
    FREQUENCIES = ("frequencies", Promise.P19, Cause.SAMPLING)
    LOGPROBS_MISSING = ("logprobs-missing", Promise.P18, Cause.LOGPROBS)
    PROMPT_LOGPROBS_MISSING = ("prompt-logprobs-missing", Promise.P18, Cause.LOGPROBS)
    LOGPROB = ("logprob", Promise.P18, Cause.LOGPROBS)
    RANK = ("rank", Promise.P18, Cause.LOGPROBS)
    TOP_LOGPROBS = ("top-logprobs", Promise.P18, Cause.LOGPROBS)
    # bad requests (`checks.refusals`)
    REFUSED = ("refused", Promise.P12, Cause.INPUT)
    REFUSAL_WORDS = ("refusal-words", Promise.P12, Cause.INPUT)
    LIVE_ID = ("live-id", Promise.P12)
    # two runs compared (`checks.relations`)
    RELATION = ("relation", Promise.P5)
    RELATION_LOGITS = ("relation-logits", Promise.P5)
    RETURNED = ("returned", Promise.P8, Cause.STALE)
    REPEATS = ("repeats", Promise.P16)
    INVARIANCE = ("invariance", Promise.P20, Cause.SHAPES)
    # attention seen from outside (`checks.masks`)
    MASK_SHAPE = ("mask-shape", Promise.P6)
    MASK = ("mask", Promise.P6, Cause.MASK)
    MASK_LEAK = ("mask-leak", Promise.P6, Cause.LEAK)
    UNSEEN_MOVES = ("unseen-moves", Promise.P6)
    SEEN_STAYS = ("seen-stays", Promise.P6)
    # the trace (`checks.trace`, `checks.scheduling`, `checks.late_ends`, `checks.contract_types`)
    TRACE_TYPE = ("trace-type", Promise.P11)
    NAMES = ("names", Promise.P7)
    POSITIONS = ("positions", Promise.P7)
    QUERY_LEN = ("query-len", Promise.P7)
    SAMPLED = ("sampled", Promise.P7)
    DRAFTS = ("drafts", Promise.P17, Cause.SPECULATION)
    PREFIX = ("prefix", Promise.P7, Cause.STALE)
    TWO_ROWS = ("two-rows", Promise.P9)
    QUEUES = ("queues", Promise.P9)
    SLOTS = ("slots", Promise.P9)
    TOKEN_BUDGET = ("token-budget", Promise.P9)
    FIRST_COME = ("first-come", Promise.P9)
    ARRIVAL_ORDER = ("arrival-order", Promise.P9)
    DECODES = ("decodes", Promise.P9)
    REFILL = ("refill", Promise.P9)
    LATE_FINISH = ("late-finish", Promise.P9)
    LATE_ADMISSION = ("late-admission", Promise.P9)
    LATE_ROWS = ("late-rows", Promise.P9)
    LATE_SLOTS = ("late-slots", Promise.P9)
    STEP_BOUND = ("step-bound", Promise.P10)
    IDLE_STEP = ("idle-step", Promise.P10)
    FINISHED_ONCE = ("finished-once", Promise.P10)
    POOL = ("pool", Promise.P11)
    ACCOUNTING = ("accounting", Promise.P11)
    LEFTOVER_BLOCKS = ("leftover-blocks", Promise.P11)
    NUM_SAMPLED = ("num-sampled", Promise.P14)
    # events (`checks.conduct`, `checks.contract_types`)
    STEP_TYPE = ("step-type", Promise.P14)
    EVENT_TYPE = ("event-type", Promise.P14)
    EVENT_FIELD = ("event-field", Promise.P14)
    LAST_EVENT = ("last-event", Promise.P14)
    EMPTY_EVENT = ("empty-event", Promise.P14)
    NUM_EVENTS = ("num-events", Promise.P14)
    STRANGE_EVENT = ("strange-event", Promise.P14)
    REFUSAL_EVENT = ("refusal-event", Promise.P14)
    # cancelled requests (`checks.cancelling`)
    CANCELLED_TOKEN = ("cancelled-token", Promise.P13)
    CANCELLED_ANSWER = ("cancelled-answer", Promise.P13)
    CANCELLED_FED = ("cancelled-fed", Promise.P13, Cause.CANCEL)
    CANCELLED_ROW = ("cancelled-row", Promise.P13)
    CANCELLED_BLOCKS = ("cancelled-blocks", Promise.P13, Cause.CANCEL)
    FREED_TWICE = ("freed-twice", Promise.P13, Cause.ACCOUNTING)
    NOT_ABORTED = ("not-aborted", Promise.P13)
    ABORTED_LENGTH = ("aborted-length", Promise.P13)
    # what an engine must leave alone (`checks.environment`)
    WORLD = ("world", Promise.P15)
    CALLERS_LIST = ("callers-list", Promise.P15)
    CALLERS_REQUESTS = ("callers-requests", Promise.P15)
    # the run itself
    RAISED = ("raised", Promise.P1)
    UNREADABLE = ("unreadable", Promise.P1)
    HANG = ("hang", Promise.P10)
    DIED = ("died", Promise.P10)
    # what a test or a case is about did not happen
    NEVER_HAPPENED = ("never-happened", Promise.P1, Cause.SCHEDULING)
    CASE_EVENT = ("case-event", Promise.P1, Cause.SCHEDULING)
    MAX_STEPS = ("max-steps", Promise.P9)
    # a user's own test, in its own words: the fact `what`
    STATED = ("stated", Promise.P1)

    def __init__(self, rule_id: str, promise: Promise, cause: Cause | None = None) -> None:
        self.id = rule_id
        self.promise = promise
        self.cause = cause

    def __str__(self) -> str:
        return self.id

    @classmethod
    def by_id(cls, rule_id: str) -> Rule:
        """Returns the rule. Raises `KeyError` for an id that no rule has."""
        return {rule.id: rule for rule in cls}[rule_id]


@dataclass(frozen=True)
class Finding:
    """A broken promise.

    `request_id` and `step` say where it shows first, if that is known; the rule decides whether
    `step` is an output step of the request or a step of the engine. `facts` hold JSON values only.
    `appeared` is what was changed before, where a relation between runs found it.
    """

    promise: Promise
    rule: Rule
    request_id: str | None = None
    step: int | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    appeared: str | None = None

    def __post_init__(self) -> None:
        facts = {name: _frozen(value) for name, value in self.facts.items()}
        object.__setattr__(self, "facts", MappingProxyType(facts))

    @property
    def cause(self) -> Cause | None:
        """The cause that the rule names by itself, if any."""
        return self.rule.cause

    def under(self, promise: Promise, appeared: str | None = None) -> Self:
        """Returns the same finding, counted for another promise."""
        return replace(self, promise=promise, appeared=appeared or self.appeared)


def found(
    rule: Rule,
    request_id: str | None = None,
    step: int | None = None,
    promise: Promise | None = None,
    **facts: Any,
) -> Finding:
    """Returns a finding of the rule's own promise, unless another is given.

    Raises `TypeError` for a fact that is no JSON value.
    """
    return Finding(promise or rule.promise, rule, request_id, step, facts)


def thawed(fact: Fact) -> Any:
    """Returns the fact with lists in place of tuples."""
    return [thawed(each) for each in fact] if isinstance(fact, tuple) else fact


def _frozen(value: Any) -> Fact:
    if isinstance(value, list | tuple):
        return tuple(_frozen(each) for each in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a fact is {value!r} of type {type(value).__name__}, but must be a JSON value")
