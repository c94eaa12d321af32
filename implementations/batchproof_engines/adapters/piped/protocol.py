"""The protocol of engines behind a pipe: the one place that names its operations and fields.

The programs of released engines load this file as well, in environments that do not know Batchproof: it
uses the standard library only and runs on Python 3.10. `docs/piped_engines.md` explains the protocol to
authors of engines, and a test compares that page with this module.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

VERSION = 1
STEPPING = "stepping"  # the one capability that has operations of its own
CHOOSING = (  # need `Request.sampling`
    *("logprobs", "prompt_logprobs", "logit_processing", "sampling", "seeded_sampling"),
)
SPECULATION = "speculation"  # `build` names the draft
EXACT_DRAFTS = "exact_drafts"  # drafts are those of that, and right ones are kept
ADAPTERS = "adapters"  # requests name adapters, which are loaded and unloaded
LIFECYCLE = (  # what is done with an engine besides; the last: also while requests run
    *("pausing", "sleeping", "cache_clearing", "weight_updates", "interruption"),
)
STRUCTURED = "structured"  # requests have grammars
TRACING = "tracing"  # answers have records of the steps
CAPABILITIES = (  # what a program can declare
    *(STEPPING, "chunked_prefill", "preemption", SPECULATION, EXACT_DRAFTS, *CHOOSING),
    *(ADAPTERS, STRUCTURED, *LIFECYCLE, TRACING, "scheduling", "prefix_caching"),
)


class Sampling(TypedDict, total=False):
    """How to choose tokens: the fields of `batchproof.api.SamplingParams` that differ from their
    defaults. Allowed ids are in ascending order; a bias is a pair of token id and number."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: list[tuple[int, float]]
    allowed_token_ids: list[int]
    min_tokens: int
    stop_token_sequences: list[list[int]]
    logprobs: int
    prompt_logprobs: int


class Grammar(TypedDict):
    """What the text of an answer must look like: `batchproof.api.Grammar`."""

    kind: Literal["regex", "ebnf", "json_schema"]
    text: str


class _Request(TypedDict):
    request_id: str
    prompt_token_ids: list[int]
    max_new_tokens: int
    eos_token_ids: list[int]


class Request(_Request, total=False):
    """A request as the suite sends it; `eos_token_ids` are in ascending order. Only a program that
    declares one of `CHOOSING` gets `sampling`, where the request has any, and only one that declares
    `ADAPTERS` the name of an adapter, or `STRUCTURED` a grammar."""

    sampling: Sampling
    adapter: str
    grammar: Grammar


# What follows is answered by the program. A field with a default may be left out.


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
class Row:
    """One sequence's share of a step: `batchproof.api.RowRecord`."""

    request_id: str
    context_len: int
    query_len: int
    is_sampled: bool
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(frozen=True, kw_only=True)
class Step:
    """One forward pass: `batchproof.api.StepRecord`."""

    rows: tuple[Row, ...]
    waiting: tuple[str, ...] = ()
    admitted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()
    num_free_blocks: int | None = None
    num_total_blocks: int | None = None
    num_cache_groups: int = 1


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the program documents of the parameters that it takes: `batchproof.api.SamplingLimits`."""

    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    documented: dict[str, tuple[float, ...]] = field(default_factory=dict)
    apart: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The answer to `hello`; `notes` are conventions and settings, in sentences for the report.
    `sampling_fields` are the fields of `Sampling` that the program takes; None: all that its
    capabilities are about. `sampling_limits` are its limits of them. Each size of a block is a multiple
    of `block_size_multiple`. `grammar_kinds` are the kinds of grammars that it takes, None: all, and
    `grammar_ends` the EOS ids that end their texts, None: those of a request."""

    name: str
    version: str
    capabilities: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sampling_fields: tuple[str, ...] | None = None
    sampling_limits: Limits = Limits()
    block_size_multiple: int = 1
    grammar_kinds: tuple[Literal["regex", "ebnf", "json_schema"], ...] | None = None
    grammar_ends: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Built:
    """The answer to `build`: empty, or why the engine cannot serve the model, or which capabilities of
    the program it lacks with this model."""

    unsupported: str | None = None
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Generated:
    """The answer to `generate`: one completion for each request, in the order of the requests. `trace`
    has the steps since the last answer, of a program that declares `TRACING`, and `counters` how often
    happened since then what a verdict should count, by name."""

    completions: tuple[Completion, ...]
    trace: tuple[Step, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Added:
    """The answer to `add`: empty, or `live` where a request with that id has not finished yet."""

    live: bool = False


@dataclass(frozen=True)
class Stepped:
    """The answer to `step`: what one iteration produced; the others as for `generate`."""

    events: tuple[Event, ...]
    trace: tuple[Step, ...] = ()
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


ANSWERS: dict[str, Any] = {
    "hello": Hello,
    "build": Built,
    "generate": Generated,
    "close": Nothing,
    "add": Added,  # this and the following: only where the program declares `STEPPING`
    "step": Stepped,
    "abort": Nothing,
    "has_unfinished": HasUnfinished,
    "load_adapter": Nothing,  # this and the next: only where it declares `ADAPTERS`
    "unload_adapter": Nothing,
    "pause": Nothing,  # this and the following: only where it declares one of `LIFECYCLE`
    "resume": Nothing,
    "sleep": Nothing,
    "wake": Nothing,
    "clear_cache": Nothing,
    "update_weights": Nothing,
}
