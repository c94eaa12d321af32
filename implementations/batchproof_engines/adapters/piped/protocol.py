"""The protocol of engines behind a pipe: the one place that names its operations and fields.

The programs of released engines load this file as well, in environments that do not know Batchproof: it
uses the standard library only and runs on Python 3.10. `docs/piped_engines.md` explains the protocol to
authors of engines, and a test compares that page with this module.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

VERSION = 1
STEPPING = "stepping"  # the one capability that has operations of its own
CHOOSING = (  # need `Request.sampling`
    *("logprobs", "prompt_logprobs", "logit_processing", "sampling", "seeded_sampling"),
)
SPECULATION = "speculation"  # `build` names the draft
CAPABILITIES = (  # what a program can declare
    *(STEPPING, "chunked_prefill", "preemption", SPECULATION, *CHOOSING),
)

Operation = Literal[
    "hello",
    "build",
    "generate",
    "close",
    "add",  # this and the following: only where the program declares `STEPPING`
    "step",
    "abort",
    "has_unfinished",
]
FinishReason = Literal["stop", "length", "aborted", "error"]


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


class _Request(TypedDict):
    request_id: str
    prompt_token_ids: list[int]
    max_new_tokens: int
    eos_token_ids: list[int]


class Request(_Request, total=False):
    """A request as the suite sends it; `eos_token_ids` are in ascending order. Only a program that
    declares one of `CHOOSING` gets `sampling`, where the request has any."""

    sampling: Sampling


class Logprobs(TypedDict):
    """The logprob of a token, its rank (1 is the likeliest; None if it is not known), and the likeliest
    tokens with theirs, as pairs."""

    logprob: float
    rank: int | None
    top: list[tuple[int, float]]


class _Completion(TypedDict):
    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason


class Completion(_Completion, total=False):
    """The whole answer to a request; `error` says why a request was refused. `logprobs` has an entry
    for each token if the request asks for them; `prompt_logprobs` has one for each token of the prompt,
    None for the first."""

    error: str | None
    logprobs: list[Logprobs] | None
    prompt_logprobs: list[Logprobs | None] | None


class _Event(TypedDict):
    request_id: str
    token_id: int | None


class Event(_Event, total=False):
    """One new token of a request, or its end; `token_id` is None where there is no token."""

    finish_reason: FinishReason | None
    error: str | None
    logprobs: Logprobs | None


class _Hello(TypedDict):
    name: str
    version: str


class Hello(_Hello, total=False):
    """The answer to `hello`; `notes` are sentences for the report. `sampling_fields` are the fields of
    `Sampling` that the program takes; without it, all that its capabilities are about."""

    capabilities: list[str]
    notes: list[str]
    sampling_fields: list[str]


class Built(TypedDict, total=False):
    """The answer to `build`: empty, or why the engine cannot serve the model."""

    unsupported: str


class Generated(TypedDict):
    """The answer to `generate`: one completion for each request, in the order of the requests."""

    completions: list[Completion]


class Added(TypedDict, total=False):
    """The answer to `add`: empty, or `live` where a request with that id has not finished yet."""

    live: bool


class Stepped(TypedDict):
    """The answer to `step`: what one iteration produced."""

    events: list[Event]


class HasUnfinished(TypedDict):
    """The answer to `has_unfinished`."""

    has_unfinished: bool


class Nothing(TypedDict):
    """The answer to `close` and to `abort`."""


class Failed(TypedDict):
    """The answer to any operation during which the engine raised an exception."""

    error: str


ANSWERS: dict[str, Any] = {
    "hello": Hello,
    "build": Built,
    "generate": Generated,
    "close": Nothing,
    "add": Added,
    "step": Stepped,
    "abort": Nothing,
    "has_unfinished": HasUnfinished,
}


def fields(message: Any) -> tuple[str, ...]:
    """Returns the names of all fields, required and optional, of one of the messages above."""
    return tuple(message.__annotations__)
