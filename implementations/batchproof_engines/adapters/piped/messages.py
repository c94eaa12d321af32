"""What the programs behind a pipe answer, as the suite reads it (`protocol.py`). A field with a default
may be left out.

Limits of parameters and records of steps are the contract's own, and so is what the suite sends: the
fields of `Request`, `SamplingParams` and `Grammar`.
"""

from dataclasses import dataclass, field
from typing import Literal

from batchproof.api import Capability, SamplingLimits, StepRecord
from batchproof.decoding.grammar import KINDS

# What a program can declare: all but what has no messages, and closing, which each engine can.
CAPABILITIES = tuple(
    each
    for each in Capability
    if each not in (Capability.LOGITS, Capability.MASKING, Capability.CLOSING, Capability.INVARIANCE)
)


@dataclass(frozen=True, kw_only=True)
class Logprobs:
    """The logprob of a token, its rank (1 is the likeliest; None if it is not known), and the likeliest
    tokens with theirs, as pairs."""

    logprob: float
    rank: int | None = None
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The whole answer to a request; `error` says why a request was refused. `logprobs` has an entry
    for each token if the request asks for them; `prompt_logprobs` has one for each token of the prompt,
    None for the first. Only `abort` ends a request as "aborted", so no completion says that."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: Literal["stop", "length", "error"]
    error: str | None = None
    logprobs: tuple[Logprobs, ...] | None = None
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Event:
    """One new token of a request, or its end; `token_id` is None where there is no token."""

    request_id: str
    token_id: int | None
    finish_reason: Literal["stop", "length", "aborted", "error"] | None = None
    error: str | None = None
    logprobs: Logprobs | None = None


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The answer to `hello`; `notes` are conventions and settings, in sentences for the report.
    `sampling_fields` are the fields of `SamplingParams` that the program takes; None: all that its
    capabilities are about. `sampling_limits` are its limits of them. Each size of a block is a multiple
    of `block_size_multiple`. `grammar_kinds` are the kinds of grammars that it takes, and
    `grammar_ends` the EOS ids that end their texts, None: those of a request."""

    name: str
    version: str
    capabilities: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sampling_fields: frozenset[str] | None = None
    sampling_limits: SamplingLimits = SamplingLimits()
    block_size_multiple: int = 1
    grammar_kinds: frozenset[str] = frozenset(KINDS)
    grammar_ends: frozenset[int] | None = None


@dataclass(frozen=True)
class Built:
    """The answer to `build`: empty, or why the engine cannot serve the model, or which capabilities of
    the program it lacks with this model."""

    unsupported: str | None = None
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Generated:
    """The answer to `generate`: one completion for each request, in the order of the requests. `trace`
    has the steps since the last answer, of a program that declares "tracing", and `counters` how often
    happened since then what a verdict should count, by name."""

    completions: tuple[Completion, ...]
    trace: tuple[StepRecord, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Added:
    """The answer to `add`: empty, or `live` where a request with that id has not finished yet."""

    live: bool = False


@dataclass(frozen=True)
class Stepped:
    """The answer to `step`: what one iteration produced; the others as for `generate`."""

    events: tuple[Event, ...]
    trace: tuple[StepRecord, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class HasUnfinished:
    """The answer to `has_unfinished`."""

    has_unfinished: bool


@dataclass(frozen=True)
class Nothing:
    """The answer to `close`, to `abort`, where an adapter is loaded or unloaded, and to what is done
    with the engine besides."""


@dataclass(frozen=True)
class Failed:
    """The answer to any operation during which the engine raised an exception."""

    error: str


ANSWERS: dict[str, type] = {  # of answers, by the operation; all others are `Nothing`
    "hello": Hello,
    "build": Built,
    "generate": Generated,
    "add": Added,
    "step": Stepped,
    "has_unfinished": HasUnfinished,
}
