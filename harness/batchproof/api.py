"""The contract between Batchproof and an inference engine; an author needs no other file.

A *factory* is called with a model and an `EngineConfig` and returns an *engine*. The only method an
engine must have is `generate`; there is no base class. Everything else is a *capability*: its tests
run if the engine has it and are skipped, by name, if not.

    def factory(model: PreTrainedModel, config: EngineConfig) -> Engine: ...

Decoding is greedy: the next token is the argmax of the logits at the sequence's last position (of
exact equals, any), unless a request says otherwise (`SamplingParams`, for engines with the capability).
The suite provides the model, so engine and reference cannot differ in weights by
accident. The promises every engine is held to are listed in `batchproof.requirements.promises`; what it
must and may do stands in docs/contract.md, sentence by sentence.

This module imports no torch at run time, so that a scheduler may import it and stay free of tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from numbers import Integral
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from batchproof.decoding.grammar import Grammar as Grammar  # noqa: PLC0414
from batchproof.decoding.sampling import SamplingLimits as SamplingLimits  # noqa: PLC0414
from batchproof.decoding.sampling import SamplingParams as SamplingParams  # noqa: PLC0414
from batchproof.decoding.sampling import TokenLogprobs as TokenLogprobs  # noqa: PLC0414
from batchproof.decoding.speculation import dialled_draft
from batchproof.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # an EOS or a stop sequence ends its answer, also exactly at the cap
    LENGTH = "length"  # it produced `max_new_tokens` tokens, and neither ends them
    ABORTED = "aborted"  # it was cancelled by `abort`
    ERROR = "error"  # it was refused; `error` names the value and the rule


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, a limit on new tokens, and the tokens that end the answer.

    An engine never alters it. It is not validated here: refusing a bad request is the engine's duty
    (promise P12). An EOS id that the vocabulary lacks is no error, and ends nothing.
    """

    request_id: str  # unique among the live requests; that of a refused one is free at once, also for a
    # later request of the same call
    prompt_token_ids: tuple[int, ...]  # at least one
    max_new_tokens: int  # the cap, at least 1
    eos_token_ids: frozenset[int] = frozenset()  # each ends the answer; none: the cap alone does
    sampling: SamplingParams | None = None  # None: greedy
    adapter: str | None = None  # name of a loaded one: `AdapterEngine`; None: the model alone
    grammar: Grammar | None = None  # what its text must look like; such a request has an EOS id


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one request.

    `token_ids` holds the new tokens only, a final EOS included: Python ints, no numpy or torch
    scalars. `finish_reason` is a member of the enum, not its text. `logits`, if any, is float32 of
    shape `(len(token_ids), vocab_size)`: token i was chosen from row i. Later calls leave them as they
    are. `logprobs` and `prompt_logprobs` are there if the request asks for them. Entry i of the latter
    is of prompt token i, from the logits at position i - 1; the first, before which nothing stands, is
    None. They are in completions alone: events have none.
    """

    request_id: str  # that of the request
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    error: str | None = None  # of a refused request: the value and the rule
    logits: Tensor | None = field(default=None, compare=False, repr=False)
    logprobs: tuple[TokenLogprobs, ...] | None = field(default=None, compare=False)  # one a token
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = field(default=None, compare=False)

    @classmethod
    def refused(cls, request_id: str, error: str) -> Completion:
        """Returns the answer to a bad request: no tokens, and the reason in `error`."""
        return cls(request_id, (), FinishReason.ERROR, error)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits an engine works under. It ignores a field it has no use for.

    With `prefix_caching` off, every request computes all its keys, so that earlier requests change
    no bit of its logits. With it on, an engine with the capability may let a request begin behind an
    equal beginning computed before, by another request or by itself before a preemption. The last
    known token is always fed.

    Raises `ConfigError` if a value is out of range.
    """

    max_num_seqs: int = 8  # sequences in flight at once ("slots")
    max_num_batched_tokens: int = 2048  # tokens fed to the model in one step
    block_size: int = 16  # tokens in one block of KV cache: `BlockedEngine`
    num_blocks: int | None = None  # blocks in the pool; None: as many as it takes. With PREEMPTION a
    # request of more than `num_blocks * block_size` + 1 tokens, prompt and cap, must be refused
    max_model_len: int | None = None  # prompt + new tokens; None: what the model has positions for
    return_logits: bool = False  # fill `Completion.logits`
    prefix_caching: bool = False  # requests that begin alike may share computed keys
    num_speculative_tokens: int | None = None  # drafts of a sequence in one step; None: no speculation
    draft_agreement: float | None = None  # of the `draft_model`; None: drafts come from n-grams
    max_loras: int | None = None  # different adapters in one step, others wait; None: none is named

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ConfigError(f"EngineConfig.{problem}")

    def _problems(self) -> Iterator[str]:
        """Yields what is out of range."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type == "float | None" or (value is None and each.default is None):
                continue
            kind = bool if isinstance(each.default, bool) else int
            if type(value) is not kind:
                rule = "True or False" if kind is bool else "a whole number"
                yield f"{each.name} is {value!r}, but must be {rule}"
            if kind is int and value < 1:
                yield f"{each.name} is {value}, but must be at least 1"
        if self.max_num_batched_tokens < self.max_num_seqs:
            rule = f"at least max_num_seqs ({self.max_num_seqs}), or a full batch could not decode"
            yield f"max_num_batched_tokens is {self.max_num_batched_tokens}, but must be {rule}"
        agreement = self.draft_agreement
        if agreement is not None:
            if type(agreement) not in (int, float) or not 0 <= agreement <= 1:
                yield f"draft_agreement is {agreement!r}, but must be a number from 0 to 1"
            if self.num_speculative_tokens is None:
                yield f"draft_agreement is {agreement!r}, which needs num_speculative_tokens"

    def draft_model(self, model: PreTrainedModel) -> PreTrainedModel | None:
        """Returns the draft for speculation with this model; None if drafts come from n-grams.

        It is the same object each time, and shares parameters with the model: an engine alters neither.
        With n-grams, what followed an earlier occurrence of a sequence's last tokens is proposed, as in
        vLLM's method "ngram". The lengths of the n-grams are the engine's choice.
        """
        agreement = self.draft_agreement
        return None if agreement is None else dialled_draft(model, agreement)


class Engine(Protocol):
    """The one required method."""

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers every request: returns one completion each, in input order.

        May be called any number of times on one engine, but never while requests given by `add` are
        unfinished. A bad request gets `FinishReason.ERROR`; no exception is raised.
        """


EngineFactory = Callable[["PreTrainedModel", EngineConfig], Engine]


class Capability(StrEnum):
    """What an engine may offer beyond `generate`.

    Without a declaration an engine is held to what its methods show: STEPPING, TRACING, MASKING,
    CLOSING, ADAPTERS and INVARIANCE by their members, SCHEDULING if it has both of the first two,
    LOGITS if a first answer contains them. An engine with an attribute
    `capabilities: frozenset[Capability]` is held to exactly that set; naming one without having its
    methods is an error.
    """

    STEPPING = "stepping"  # `add`, `step`, `abort`, `has_unfinished`
    TRACING = "tracing"  # `trace`
    LOGITS = "logits"  # `Completion.logits` is filled when `EngineConfig.return_logits`
    MASKING = "masking"  # `attention_mask`
    CLOSING = "closing"  # `close`
    SCHEDULING = "scheduling"  # P9: a slot freed by a step is filled in the next, first come first
    # served (of one call: in input order), if a token, or without CHUNKED_PREFILL the whole request,
    # fits the budget, and the pool holds the whole lives of all; each running decode gets a token in
    # each step; max_num_batched_tokens is kept. One that reads its tokens late frees a slot as late as
    # it declares: `DelayedEngine`
    CHUNKED_PREFILL = "chunked_prefill"  # a prompt above `max_num_batched_tokens` is fed in parts
    PREEMPTION = "preemption"  # a full block pool makes it preempt, whom it likes; needs `num_blocks`
    PREFIX_CACHING = "prefix_caching"  # with `EngineConfig.prefix_caching` a request whose beginning
    # is cached starts behind it: its first row after an admission has a context_len above 0. Needs
    # TRACING; an engine without it may share all the same, and its answers alone are judged
    LOGPROBS = "logprobs"  # completions and events have logprobs if a request asks for them
    PROMPT_LOGPROBS = "prompt_logprobs"  # besides: completions have those of the prompt. A request that
    # asks for them need not begin behind a cached prefix
    LOGIT_PROCESSING = "logit_processing"  # stages 1 to 5 of `SamplingParams`, and stop sequences
    SAMPLING = "sampling"  # stage 6: temperatures above 0
    SEEDED_SAMPLING = "seeded_sampling"  # a request with a seed draws the same tokens in any batch
    SPECULATION = "speculation"  # drafts greedy answers: `EngineConfig.num_speculative_tokens`. Whether
    # those with parameters as well, such as penalties, is its choice
    EXACT_DRAFTS = "exact_drafts"  # besides: they are those of `EngineConfig.draft_model` or of its
    # head, and every right one is kept
    ADAPTERS = "adapters"  # `load_adapter`, `unload_adapter`: requests name low-rank adapters
    PAUSING = "pausing"  # `pause`, `resume`. This and the four that follow must be declared
    SLEEPING = "sleeping"  # `sleep`, `wake`
    CACHE_CLEARING = "cache_clearing"  # `clear_cache`
    WEIGHT_UPDATES = "weight_updates"  # `update_weights`
    INTERRUPTION = "interruption"  # besides: those of the four that it has may come while requests run.
    # Without it they come while no request is unfinished
    STRUCTURED = "structured"  # `Request.grammar`, of each kind, beside drafts as well
    INVARIANCE = "invariance"  # `invariance`: grades that the engine reaches at least


_FIELDS: dict[Capability, tuple[str, ...]] = {  # of `SamplingParams`
    Capability.LOGPROBS: ("logprobs",),
    Capability.PROMPT_LOGPROBS: ("prompt_logprobs",),
    Capability.LOGIT_PROCESSING: (
        *("logit_bias", "allowed_token_ids", "min_tokens", "stop_token_sequences"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty"),
    ),
    Capability.SAMPLING: ("temperature", "top_k", "top_p", "min_p", "seed"),
    Capability.SEEDED_SAMPLING: ("seed",),
}
CHOOSING = frozenset(_FIELDS)  # what `Request.sampling` needs


def fields_of(capabilities: Iterable[Capability]) -> frozenset[str]:
    """Returns the fields of `SamplingParams` that these capabilities are about."""
    return frozenset(name for each in capabilities for name in _FIELDS.get(each, ()))


class TokenEvent(NamedTuple):
    """One token of one request, as it is produced.

    It is a tuple, because an engine makes one for each row of each step, and a frozen dataclass
    takes more than twice as long to make. The event of the last token also carries the
    `finish_reason`; the others have None. `token_id` is None only for ERROR and ABORTED, which
    produce no token.
    """

    request_id: str
    token_id: int | None
    finish_reason: FinishReason | None = None  # of the last event alone
    error: str | None = None  # of a refused request: the value and the rule
    logprobs: TokenLogprobs | None = None

    @classmethod
    def refused(cls, request_id: str, error: str) -> TokenEvent:
        """Returns the single event of a bad request, with the reason in `error`."""
        return cls(request_id, None, FinishReason.ERROR, error)


@runtime_checkable
class SteppingEngine(Protocol):
    """An engine whose requests can arrive and leave while others run."""

    @property
    def has_unfinished(self) -> bool:
        """Whether a call of `step` has work to do or an event to deliver. A property."""

    def add(self, request: Request) -> None:
        """Queues a request. A bad one is refused by one ERROR event of a later `step`.

        Raises `ValueError` if the id is live (added and not yet finished), because events could not
        distinguish the two; the live request is not disturbed. An id may be used again once it has
        finished.
        """

    def step(self) -> list[TokenEvent]:
        """Performs one iteration, usually one forward pass, and returns its events.

        Returns an empty list if there is nothing to do.
        """

    def abort(self, request_id: str) -> None:
        """Ends a request at once, in whatever state it is, and frees what it holds.

        No token follows; one event with ABORTED may still come in the next `step`, after which the
        id may be used again. Until then `add` may take or refuse it. Unknown and finished ids are
        ignored.
        """


@runtime_checkable
class SelectiveEngine(Protocol):
    """An engine that takes some fields of `SamplingParams` and lacks others, or some values of them.

    It refuses a request with one that it lacks; the suite sends it none. It may have an attribute
    `sampling_limits: SamplingLimits` besides: what it documents of the values that it takes. A value
    beyond such a range is refused like any bad one.
    """

    @property
    def sampling_fields(self) -> frozenset[str]:
        """Names of the fields it takes; without the attribute all that its capabilities are about."""


@runtime_checkable
class AdapterEngine(Protocol):
    """An engine that serves low-rank adapters (LoRA) of its model, each request its own (P21).

    A request that names an adapter is answered by the model with that adapter in it, one that names
    none by the model alone, whatever its neighbours ask for. One that names an unknown adapter is
    refused. Both methods are called while no request is unfinished.
    """

    def load_adapter(self, name: str, path: str) -> None:
        """Lets requests name the adapter in a folder that PEFT's `save_pretrained` writes:
        `adapter_config.json` and `adapter_model.safetensors`, as they are now. One of that name is
        replaced, also if it came from the same folder."""

    def unload_adapter(self, name: str) -> None:
        """Forgets an adapter: a request that names it is refused from now on."""


@runtime_checkable
class PausingEngine(Protocol):
    """An engine that can stand still (P23).

    Between `pause` and `resume` no step feeds anything, and only the first may return tokens, which
    were chosen before. `generate` is not called meanwhile; with INTERRUPTION `add` and `abort` work as
    ever. Behind it all requests go on with the answers that they would have got. What was cached may be
    kept or not.
    """

    def pause(self) -> None: ...

    def resume(self) -> None: ...


@runtime_checkable
class SleepingEngine(Protocol):
    """An engine that can give back memory while it is not used (P23).

    What `PausingEngine` says holds between `sleep` and `wake`. The weights are the same afterwards.
    """

    def sleep(self) -> None: ...

    def wake(self) -> None: ...


@runtime_checkable
class CacheClearingEngine(Protocol):
    """An engine that can forget all prefixes (P23)."""

    def clear_cache(self) -> None:
        """Forgets what is cached: no request begins behind tokens that were computed before, not even
        those of a request in flight. That goes on, with its own keys or with new ones."""


@runtime_checkable
class UpdatingEngine(Protocol):
    """An engine whose weights can be replaced in place (P23)."""

    def update_weights(self, model: PreTrainedModel, names: Sequence[str] | None = None) -> None:
        """Takes over the parameters of a model of the same configuration: all, or those of these names
        (`named_parameters`). Both models stay as they are, and later changes of theirs have no effect.

        All that was computed before is forgotten. With INTERRUPTION requests in flight go on: the
        tokens that were chosen are kept, some of which the first step behind it may return, and each
        later token is the new model's answer to the prompt and these, with keys and values of its own.
        """


@runtime_checkable
class StructuredEngine(Protocol):
    """An engine that takes some kinds of grammars and lacks others, or ends all texts alike. The suite
    asks for no others. Both attributes are optional."""

    @property
    def grammar_kinds(self) -> frozenset[str]:
        """Kinds of `Grammar` that it takes; without the attribute all."""

    @property
    def grammar_ends(self) -> frozenset[int]:
        """EOS ids that end texts, such as that of its tokenizer; without the attribute those of each
        request."""


@runtime_checkable
class BlockedEngine(Protocol):
    """An engine whose kernels want blocks of certain sizes.

    The suite asks it for no others: a size is rounded up, and a pool to whole blocks. The default size
    is the one exception, for an engine that is built to see what it offers.
    """

    @property
    def block_size_multiple(self) -> int:
        """What each size of a block is a multiple of; without the attribute 1."""


@dataclass(frozen=True, slots=True)
class RowRecord:
    """One sequence's share of a step. Its last query sees `context_len + query_len` keys.

    A row that verifies drafts is fed the last known token and `num_drafted` proposals, and produces
    `num_accepted` + 1 tokens: proposals that the model chose itself, and its choice behind them. An EOS
    or the cap among them ends the answer, and so counts as that last choice. A pass of a draft model is
    no row, nor are tokens fed again in the step to bring a state back behind rejected drafts: neither
    counts in `max_num_batched_tokens`.
    """

    request_id: str
    context_len: int  # keys cached before the step, those taken over from others included
    query_len: int  # tokens fed in the step, at positions context_len ... context_len + query_len - 1
    is_sampled: bool  # a token was chosen for it, be it discarded (`DelayedEngine`); False for a chunk
    # that does not end the prompt
    num_drafted: int = 0  # the last of the fed tokens, which the step verifies
    num_accepted: int = 0

    @property
    def cached_len(self) -> int:
        """Keys that stay cached after the step: those of rejected drafts do not."""
        return self.context_len + self.query_len - self.num_drafted + self.num_accepted

    @property
    def num_sampled(self) -> int:
        """Tokens that the step produces for the sequence."""
        return self.num_accepted + 1 if self.is_sampled else 0


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One forward pass, or one `step` of an engine that makes several.

    Rows and ids may stand in any order; blocks are counted after the step. A block shared by
    several requests counts once; one that only a prefix cache remembers is free. A request is in
    `finished` of the step that sampled its last token; only for a `DelayedEngine` it may be a later
    one.
    """

    rows: tuple[RowRecord, ...]
    waiting: tuple[str, ...] = ()  # queued and without a slot, once this step's admission was done
    admitted: tuple[str, ...] = ()  # given a slot in this step, a preempted one coming back included
    finished: tuple[str, ...] = ()  # ended by this step; their slots and blocks are free again
    # Lost their slot and cache in this step, or between the one before and this, and wait again.
    preempted: tuple[str, ...] = ()
    num_free_blocks: int | None = None  # None without a pool
    num_total_blocks: int | None = None
    num_cache_groups: int = 1  # of layers, each with blocks of its own for the same tokens in one pool


@runtime_checkable
class TracingEngine(Protocol):
    """An engine that records what its scheduler does."""

    @property
    def trace(self) -> Sequence[StepRecord]:
        """One record for each forward pass since the engine was built, oldest first."""


@runtime_checkable
class DelayedEngine(Protocol):
    """An engine that reads its tokens late, to plan a step while the device runs the one before.

    So it learns of an EOS late, too. What it declares, and no more, is granted under P9, P11 and P14.
    Let an EOS, or a stop sequence, before the cap end in step s, and d be the `scheduling_delay`:

    * The request is in `finished` of one of the steps s ... s + d. Until then its slot and blocks are
      used; a slot freed by step t is filled in step t + 1, as ever.
    * In the steps after s, up to that one, it may have a row each: query_len 1, continuing where its
      cache ends, is_sampled True. What such a surplus row samples is in no event and no completion,
      and the step feeds it within `max_num_seqs` and `max_num_batched_tokens`.
    * It may be preempted in these steps, and finish while it waits. It is never admitted again.

    Every other end is known in advance and never late: an end by the cap, including an EOS exactly at
    the cap. An aborted request is not fed again at all.
    """

    @property
    def scheduling_delay(self) -> int:
        """Steps by which the engine reads its tokens late, 0 or 1; without the attribute 0.

        It is the same for all engines that a factory builds. A delay of 1 without
        `Capability.SCHEDULING` is refused: nothing else is measured by it, and its author might
        assume that surplus rows are granted.
        """


@runtime_checkable
class InvariantEngine(Protocol):
    """An engine that declares how little its answers depend on what should not matter (P20).

    Only what is declared can fail. The axes and what is varied along each are in
    `batchproof.invariance.axes`: batch, neighbours, order, arrival, chunking, prefix, offload, prefill,
    preemption, speculation, adapters, grammars, interruption, restart, threads. The grades, each of
    which implies those behind it:

    * "B": every bit of the logits stays, whatever the shapes. No grade of neighbours, grammars and
      restart, which keep all shapes.
    * "S": logits stay within kappa E, and every bit where all shapes are the same.
    * "E": logits stay within kappa E, the bound that rounding explains.
    * "T": tokens stay, on models whose margins rounding cannot bridge.
    """

    @property
    def invariance(self) -> Mapping[str, str]:
        """The least grade along each declared axis, as `{"batch": "B", "neighbours": "S"}`."""


@runtime_checkable
class MaskingEngine(Protocol):
    """An engine that shows the attention mask it would use."""

    def attention_mask(self, rows: Sequence[RowRecord]) -> Tensor:
        """Returns the mask of one step with these rows, bool `(total_q, total_kv)`; True: may attend.

        Queries: the fed tokens, row after row. Keys: the cached tokens of all rows, row after row,
        then the fed tokens, row after row. If the model's layers differ in window, the mask is that
        of the first layer that has one.
        """


@runtime_checkable
class ClosableEngine(Protocol):
    """An engine that holds a resource: a process, a connection, a pool."""

    def close(self) -> None:
        """Releases everything. The suite calls it once, after the last use."""


class DescribedEngine(Protocol):
    """An engine that says what it is, for verdicts. Each of these is optional."""

    @property
    def release(self) -> str:
        """Name and version, such as "mine 1.4.0": what a history of verdicts is sorted by."""

    @property
    def notes(self) -> Sequence[str]:
        """Conventions and settings that a verdict should state, a sentence each."""

    @property
    def counters(self) -> Mapping[str, int]:
        """How often what a verdict should count has happened since the engine was built, by name; read
        before it is closed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask for (promise P12), for engines that have no check of their own."""

    vocab_size: int
    max_model_len: int  # prompt + new tokens

    @classmethod
    def of(cls, model: PreTrainedModel, config: EngineConfig) -> Limits:
        """Returns the model's own limits, narrowed by `config.max_model_len`."""
        text_config = model.config.get_text_config()
        positions = getattr(text_config, "max_position_embeddings", None) or sys.maxsize
        return cls(text_config.vocab_size, min(positions, config.max_model_len or sys.maxsize))

    def refusal(self, request: Request) -> str | None:
        """Returns why the request cannot be served, naming value and rule; None if it can."""
        prompt, cap = request.prompt_token_ids, request.max_new_tokens
        if not len(prompt):
            return "the prompt is empty, but must hold at least one token"
        numbers = (cap, *prompt, *request.eos_token_ids)
        kinds: dict[type, object] = {type(each): each for each in numbers}  # a few, of many tokens
        for kind, example in kinds.items():
            if not issubclass(kind, Integral):
                return f"{example!r} is no whole number, but token ids and caps must be"
        unknown = [token for token in prompt if not 0 <= token < self.vocab_size]
        if unknown:
            return f"prompt token {unknown[0]} is unknown: ids are 0 to {self.vocab_size - 1}"
        if cap < 1:
            return f"max_new_tokens is {cap}, but must be at least 1"
        if len(prompt) + cap > self.max_model_len:
            return (
                f"{len(prompt)} prompt tokens + max_new_tokens {cap} = {len(prompt) + cap}, but the "
                f"context holds {self.max_model_len}"
            )
        asked, grammar, ends = request.sampling, request.grammar, request.eos_token_ids
        reason = None if asked is None else asked.refusal(self.vocab_size, cap, ends)
        if reason is None and grammar is not None:
            reason = grammar.refusal(any(0 <= token < self.vocab_size for token in ends))
        return reason

    def refusals(self, requests: Sequence[Request]) -> list[str | None]:
        """Returns `refusal` for each request of a call; of two good requests with one id the later
        is refused."""
        live: set[str] = set()
        reasons: list[str | None] = []
        for request in requests:
            reason = self.refusal(request)
            if reason is None and request.request_id in live:
                reason = duplicate_id(request.request_id)
            if reason is None:
                live.add(request.request_id)
            reasons.append(reason)
        return reasons


def duplicate_id(request_id: str) -> str:
    """Returns the message for an id that is live already."""
    return f"request_id {request_id!r} is live already; ids must be unique until they finish"
