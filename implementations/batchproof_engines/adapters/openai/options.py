"""The options of `openai`, and the body of a request that they lead to."""

import inspect
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, Self

from batchproof.api import CHOOSING, Capability, Request, fields_of
from batchproof.decoding.sampling import SamplingLimits
from batchproof.errors import UsageError
from batchproof.records.decode import DecodeError, decode
from batchproof.validation.values import at_least, one_of, require
from batchproof.workload.sampling_values import plain_values
from batchproof_engines.adapters.openai import gbnf
from batchproof_engines.adapters.word_tokenizer import stop_texts, text_of

_OPENAI = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias")
_VLLM = (*_OPENAI, "top_k", "min_p", "repetition_penalty", "allowed_token_ids", "min_tokens")


@dataclass(frozen=True)
class Dialect:
    """How a server names the fields of `SamplingParams` that it has with the contract's meaning."""

    fields: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # of fields that are called otherwise there
    beside: Mapping[str, Any] = field(default_factory=dict)  # sent with them, unless the request says
    # otherwise: a server's defaults may change the logits too
    limits: SamplingLimits = field(default_factory=SamplingLimits)
    is_greedy_alone: bool = False  # it refuses `n` answers of a request that draws nothing


# llama.cpp cuts by default, applies the temperature after the cuts, and counts the last 64 tokens.
_LLAMA_CPP = Dialect(
    ("temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty", "logit_bias"),
    {"repetition_penalty": "repeat_penalty"},
    {
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repeat_last_n": 1 << 16,
        "samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"],
    },
)
# Its SamplingParams, and OpenAI's description of completions.
_VLLM_LIMITS = SamplingLimits(
    ranges={"temperature": (0, 2), "logit_bias": (-100, 100)}, documented={"logprobs": (-1,)}
)
_DRAFTING_LIMITS = replace(_VLLM_LIMITS, ranges={"temperature": (0, 2)})
SAMPLING = {
    "none": Dialect(),
    "openai": Dialect(_OPENAI),
    "vllm": Dialect(_VLLM, limits=_VLLM_LIMITS, is_greedy_alone=True),
    # What it does not refuse beside drafts.
    "vllm-drafting": Dialect(
        tuple(sorted({*_VLLM} - {"min_p", "logit_bias"})), limits=_DRAFTING_LIMITS, is_greedy_alone=True
    ),
    "llama.cpp": _LLAMA_CPP,
}
STOPS = "stop_token_sequences"  # the interface has texts in their place: the client applies them, or
# words are sent
TEXTS = ("base_url", "model", "sampling", "release")  # also if they look like numbers


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may follow `openai?`; `docs/servers.md` explains each. Raises `UsageError`."""

    base_url: str
    model: str
    prompts: Literal["ids", "words"] = "ids"
    tokens: Literal["auto", "ids", "logprobs", "words", "verbose"] = "auto"
    eos: Literal["client", "stop", "stop_token_ids", "generation_config"] = "client"
    eos_at_cap: Literal["stop", "length"] = "stop"
    sampling: str = "none"
    seeded: bool = False
    logprobs: bool = False
    stream: bool = False
    restored: bool = False
    adapters: Literal["none", "vllm", "llama.cpp", "llama.cpp-all"] = "none"
    n: int = 1
    stop_texts: bool = False
    grammars: Literal["none", "llama.cpp"] = "none"
    concurrency: int = 32
    timeout_s: float = 300.0
    extra: Any = "{}"
    api_key_env: str | None = None
    release: str | None = None
    listed: bool = True

    def __post_init__(self) -> None:
        at_least("concurrency", self.concurrency, 1)
        at_least("n", self.n, 1)
        is_wait = 0 < self.timeout_s < float("inf")
        require(is_wait, "timeout_s", self.timeout_s, "a number of seconds above 0")
        require(isinstance(self.extras, dict), "extra", repr(self.extra), "a JSON object")
        has_key = self.api_key_env is None or self.api_key_env in os.environ
        require(has_key, "api_key_env", repr(self.api_key_env), "an environment variable that is set")
        if self.restored and self.prompts == "words":
            raise UsageError("restored is true, which needs prompts of token ids")
        if self.seeded and "seed" not in self.sampling_fields:
            raise UsageError("seeded is true, which needs sampling with a seed: sampling=openai")
        if self.n > 1 and self.tokens == "verbose" and not self.stream:
            raise UsageError(
                f"n is {self.n}, which needs stream=true: a whole answer of llama.cpp has the tokens "
                "of its first choice alone"
            )
        if self.stop_texts and (self.eos in ("client", "stop") or self.tokens == "words"):
            raise UsageError(
                "stop_texts is true, which needs EOS ids that the server applies by their numbers, and "
                "tokens that are read as ids or logprobs"
            )
        if self.logprobs and self.tokens == "words":
            raise UsageError("logprobs is true, which needs tokens that are read as ids or logprobs")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        texts = {name: str(values[name]) for name in TEXTS if values.get(name) is not None}
        try:
            return decode(cls, {**values, **texts})
        except DecodeError as error:
            raise UsageError(str(error)) from None

    @property
    def api_key(self) -> str | None:
        return None if self.api_key_env is None else os.environ[self.api_key_env]

    @cached_property
    def extras(self) -> Any:
        """What is merged into each body: the value of `extra`, which may be JSON."""
        with suppress(ValueError):
            return json.loads(self.extra) if isinstance(self.extra, str) else self.extra
        return self.extra

    @cached_property
    def dialect(self) -> Dialect:
        """How the server names fields; names that are given one by one are the contract's own."""
        names = self.sampling.split(",")
        if len(names) == 1 and names[0] not in _VLLM:
            return SAMPLING[one_of("sampling", self.sampling, SAMPLING)]
        return Dialect(tuple(one_of("sampling", each, _VLLM) for each in names))

    @cached_property
    def sampling_fields(self) -> frozenset[str]:
        named = frozenset(self.dialect.fields)
        if self.eos in ("client", "stop"):
            named = (named | {STOPS} if named else named) - {"min_tokens"}
        named |= {STOPS} if self.stop_texts else set()
        return named | {"logprobs"} if self.logprobs else named

    @property
    def limits(self) -> SamplingLimits:
        """What the server takes of the fields. Behind `min_tokens` vLLM wants one token more before a
        stop text ends an answer."""
        limits = self.dialect.limits
        both = ("min_tokens", STOPS)
        return replace(limits, apart=(*limits.apart, both)) if self.stop_texts else limits

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the engine declares: what these options are about, and closing."""
        asked = {
            Capability.CLOSING: True,
            Capability.STEPPING: self.stream,
            Capability.SEEDED_SAMPLING: self.seeded,
            Capability.ADAPTERS: self.adapters != "none",
            Capability.STRUCTURED: self.grammars != "none",
        }
        asked |= {each: bool(self.sampling_fields & fields_of({each})) for each in CHOOSING - {*asked}}
        return frozenset(each for each, is_asked in asked.items() if is_asked)

    def is_cut_here(self, request: Request) -> bool:
        """Returns whether the adapter ends the answer at an EOS. llama.cpp leaves out the logprobs of a
        stop text's tokens, so where logprobs are asked for, none is sent."""
        asks_logprobs = request.sampling is not None and request.sampling.logprobs is not None
        return self.eos == "client" or (self.eos == "stop" and asks_logprobs)

    def unsaid(self, request: Request, vocab_size: int) -> str | None:
        """Returns why the server has no words for the request's grammar, or None."""
        if request.grammar is None:
            return None
        if self.grammars == "none":
            return f"grammar is {request.grammar}, but this engine takes none"
        try:
            gbnf.translated(request.grammar, request.eos_token_ids, vocab_size)
        except ValueError as error:
            return str(error)
        return None

    def body(self, request: Request, vocab_size: int) -> dict[str, Any]:
        """Returns the body for a request, even for a bad one: refusing it is the server's duty. Raises
        `ValueError` for a grammar that is `unsaid`."""
        eos = sorted(request.eos_token_ids)
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(request.prompt_token_ids),
            "max_tokens": request.max_new_tokens,
            "temperature": 0,
        }
        if self.prompts == "words":
            body["prompt"] = text_of(request.prompt_token_ids, vocab_size)
        if self.stream:
            body["stream"] = True
        if self.tokens == "ids":
            body["return_token_ids"] = True
        if self.tokens == "logprobs":
            body |= {"logprobs": 1, "return_tokens_as_token_ids": True}
        if self.tokens == "verbose":
            body |= {"verbose": True, "return_tokens": True}
        if texts := self._stop_texts(request, vocab_size):
            body["stop"] = texts
        if self.eos == "stop_token_ids" and eos:  # vLLM refuses what the vocabulary lacks
            body["stop_token_ids"] = [each for each in eos if 0 <= each < vocab_size]
        if self.eos == "generation_config" and eos:
            body["generation_config"] = json.dumps({"eos_token_id": eos})
        body |= self._parameters(request, vocab_size)
        return {key: value for key, value in (body | self.extras).items() if value is not None}

    def _parameters(self, request: Request, vocab_size: int) -> dict[str, Any]:
        asked = {} if request.sampling is None else plain_values(request.sampling)
        asked.pop(STOPS, None)
        if "logit_bias" in asked:
            biases: dict[str, float] = {}  # those of one token add up
            for token, bias in asked["logit_bias"]:
                biases[str(token)] = biases.get(str(token), 0.0) + bias
            asked["logit_bias"] = biases
        if asked:
            names = {name: self.dialect.names.get(name, name) for name in asked}
            asked = {**self.dialect.beside, **{names[name]: asked[name] for name in asked}}
        if request.grammar is not None:
            asked["grammar"] = gbnf.translated(request.grammar, request.eos_token_ids, vocab_size)
        if "logprobs" in asked:  # the likeliest at least: it shows whether the chosen one is that
            asked |= {"logprobs": asked["logprobs"] or 1, "return_tokens_as_token_ids": True}
        return asked

    def _stop_texts(self, request: Request, vocab_size: int) -> list[str]:
        sequences = request.sampling.stop_token_sequences if request.sampling else ()
        if self.stop_texts:
            return stop_texts(sequences, vocab_size, start=1)
        if self.eos != "stop" or self.is_cut_here(request):
            return []
        return stop_texts(
            [*((each,) for each in sorted(request.eos_token_ids)), *sequences], vocab_size
        )


OPTIONS = tuple(each.name for each in fields(Options))


def signature_with(options: Iterable[str]) -> inspect.Signature:
    """Returns the signature of a factory that takes these options as keywords."""
    kinds = inspect.Parameter
    return inspect.Signature(
        [
            *(kinds(name, kinds.POSITIONAL_ONLY) for name in ("model_under_test", "config")),
            *(kinds(name, kinds.KEYWORD_ONLY) for name in options),
        ]
    )
