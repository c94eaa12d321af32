"""Refusals in other words, with the checks in another order: what is refused stays the same.

Beside the request's own numbers the styles name limits in several forms: a vocabulary by its size or by
its largest id, a context by what it holds, by the longest prompt or by the room behind the prompt, a
pool in blocks or in tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, NamedTuple

from batchproof.api import Request, SamplingParams
from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.scheduler import Scheduler


class Texts(NamedTuple):
    """What is said of a request that fails a check, for each check."""

    duplicate: str
    empty: str
    token: str
    cap: str
    prompt: str  # it fills the context by itself
    context: str
    parameter: str  # of `SamplingParams`
    pool: str


class _Worded(Scheduler):
    """Refuses in the words of `texts`, by the first check of `order` that a request fails."""

    texts: Texts
    order: tuple[str, ...] = Texts._fields

    def refusal(self, request: Request) -> str | None:
        failed = set(self._failed(request))
        first = next((each for each in self.order if each in failed), None)
        return None if first is None else self._worded(first, self._facts(request))

    def _worded(self, check: str, facts: dict[str, Any]) -> str:
        text: str = getattr(self.texts, check)
        return text.format_map(facts)

    def _failed(self, request: Request) -> Iterator[str]:
        facts = self._facts(request)
        if self.is_live(request.request_id):
            yield "duplicate"
        if not request.prompt_token_ids:
            yield "empty"
        if facts["index"] is not None:
            yield "token"
        if request.max_new_tokens < 1:
            yield "cap"
        if facts["length"] >= facts["context"]:
            yield "prompt"
        if facts["total"] > facts["context"]:
            yield "context"
        if facts["name"] is not None:
            yield "parameter"
        if self._config.num_blocks is not None and facts["needed"] > self._config.num_blocks:
            yield "pool"

    def _facts(self, request: Request) -> dict[str, Any]:
        limits, pool = self._limits, self._config.num_blocks
        vocab, context = limits.vocab_size, limits.max_model_len
        prompt, cap, size = request.prompt_token_ids, request.max_new_tokens, self._config.block_size
        unknown = [index for index, token in enumerate(prompt) if not 0 <= token < vocab]
        length, index = len(prompt), unknown[0] if unknown else None
        name, value = self._wrong_parameter(request)
        return {
            "name": name,
            "camel": name and name.replace("_", " ").title().replace(" ", ""),
            "value": value,
            "id": request.request_id,
            "index": index,
            "token": None if index is None else prompt[index],
            "vocab": vocab,
            "top": vocab - 1,
            "length": length,
            "cap": cap,
            "total": length + cap,
            "context": context,
            "longest": context - 1,
            "room": context - length,
            "needed": self._num_blocks(length + cap - 1),
            "pool": pool,
            "size": size,
            "cells": (pool or 0) * size,
        }

    def _wrong_parameter(self, request: Request) -> tuple[str | None, str]:
        """Returns the first parameter that is wrong by itself, and its value."""
        rest = self._limits.vocab_size, request.max_new_tokens, request.eos_token_ids
        for each in fields(SamplingParams):
            value = getattr(request.sampling or SamplingParams(), each.name)
            if replace(SamplingParams(), **{each.name: value}).refusal(*rest) is not None:
                return each.name, str(value)
        return None, ""


@odd
class RefusesInShorthand(_Worded):
    """Refuses with relations between abbreviated quantities: 'n_in+n_out=257>n_ctx=256'."""

    texts = Texts(
        duplicate="id={id} busy",
        empty="n_in=0<1",
        token="tok[{index}]={token},n_vocab={vocab}",
        cap="n_out={cap}<1",
        prompt="n_in={length}>=n_ctx={context}",
        context="n_in+n_out={total}>n_ctx={context}",
        parameter="{name}={value}?",
        pool="n_blk={needed}>{pool}",
    )


@odd
class RefusesAsAService(_Worded):
    """Refuses as a web service does, with advice, the parameter's name, and a sum of two terms."""

    texts = Texts(
        duplicate="A request called '{id}' is still being served. Wait, or choose another name.",
        empty="'prompt' has 0 items; send 1 or more.",
        token="'prompt[{index}]' must lie in [0, {top}], but {token} was sent.",
        cap="'max_tokens' is below its minimum: {cap} < 1.",
        prompt="Your prompt ({length} tokens) leaves nothing of a context of {context}.",
        context="A context holds {context} tokens. You asked for {length} + {cap}: ask for fewer.",
        parameter="We cannot choose tokens with a '{name}' of {value}. Please leave it out.",
        pool="The cache keeps {pool} blocks of {size} tokens; you need {needed}.",
    )


@odd
class RefusesByWhatIsLeft(_Worded):
    """Refuses by the room behind the prompt and by the longest prompt, which is one less than the
    context; it looks at the cap first and at the tokens last."""

    order = ("duplicate", "cap", "empty", "pool", "prompt", "context", "parameter", "token")
    texts = Texts(
        duplicate="cannot take {id!r} twice at a time",
        empty="no tokens to read, at least one is required",
        token="token {token} is not among the {vocab} that the model knows",
        cap="cannot write {cap} tokens, at least one is required",
        prompt="cannot read {length} tokens, at most {longest} are possible",
        context="cannot write {cap} tokens, at most {room} are possible after reading {length}",
        parameter="cannot choose by {value}",
        pool="cannot keep {length} and {cap} tokens in a cache of {cells}",
    )


@odd
class RefusesWithSeparators(_Worded):
    """Refuses with thousands separated by commas, half-open ranges, and two lines of text."""

    texts = Texts(
        duplicate="Duplicate!\n  {id} has not finished.",
        empty="Empty prompt!\n  Its length is 0.",
        token="Bad token!\n  {token:,} at {index:,}; known are 0..{vocab:,}.",
        cap="Bad cap!\n  {cap:,} is not positive.",
        prompt="Too long!\n  {length:,} tokens of prompt alone; prompt and answer have {context:,}.",
        context="Too long!\n  {length:,}+{cap:,}={total:,} tokens; there are {context:,}.",
        parameter="Bad choice!\n  {camel} is out of range.",
        pool="Too long!\n  {needed:,} blocks; there are {pool:,}.",
    )


@odd
class RefusesAsAnException(_Worded):
    """Refuses with the text of an exception; it looks at the context before the tokens."""

    order = ("empty", "cap", "prompt", "context", "pool", "token", "parameter", "duplicate")
    texts = Texts(
        duplicate="KeyError: {id!r}: running",
        empty="ValueError: input_ids has shape (1, 0)",
        token="IndexError: {token} is out of bounds for an embedding of {vocab} rows",
        cap="ValueError: max_length ({length}{cap:+}) must exceed the input ({length})",
        prompt="ValueError: max_position_embeddings={context}, input_ids.shape=(1, {length})",
        context="ValueError: max_position_embeddings={context}, max_length={total}",
        parameter="ValueError: {name}",
        pool="MemoryError: {needed} of {pool} blocks",
    )


@odd
class RefusesInJson(_Worded):
    """Refuses with a JSON object that has all numbers of the request and of the engine."""

    texts = Texts(*Texts._fields)

    def _worded(self, check: str, facts: dict[str, Any]) -> str:
        return json.dumps({"refused": check} | facts)
