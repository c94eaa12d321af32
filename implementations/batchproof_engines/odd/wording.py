"""Refusals in other words, with the checks in another order: what is refused stays the same.

Beside the request's own numbers the styles name limits in several forms: a vocabulary by its size or by
its largest id, a context by what it holds, by the longest prompt or by the room behind the prompt, a
pool in blocks or in tokens.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar

from batchproof.api import Request, SamplingParams
from batchproof_engines.odd.oddity import odd
from batchproof_engines.ragged.scheduler import Scheduler


class _Worded(Scheduler):
    """Refuses by the first of its checks that a request fails."""

    texts: ClassVar[Mapping[str, str]]  # what is said, by check, in the order of the checks

    def refusal(self, request: Request) -> str | None:
        facts = self._facts(request)
        is_failed = {
            "duplicate": self.is_live(request.request_id),
            "empty": not facts["length"],
            "token": facts["index"] is not None,
            "cap": facts["cap"] < 1,
            "prompt": facts["length"] >= facts["context"],  # it fills the context by itself
            "context": facts["total"] > facts["context"],
            "parameter": facts["name"] is not None,  # of `SamplingParams`
            "pool": facts["pool"] is not None and facts["needed"] > facts["pool"],
        }
        failed = next((check for check in self.texts if is_failed[check]), None)
        return None if failed is None else self._worded(failed, facts)

    def _worded(self, check: str, facts: dict[str, Any]) -> str:
        return self.texts[check].format_map(facts)

    def _facts(self, request: Request) -> dict[str, Any]:
        limits, pool = self._limits, self._config.num_blocks
        vocab, context = limits.vocab_size, limits.max_model_len
        prompt, cap, size = request.prompt_token_ids, request.max_new_tokens, self._config.block_size
        index = next((i for i, token in enumerate(prompt) if not 0 <= token < vocab), None)
        length = len(prompt)
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
class RefusesAsAService(_Worded):
    """Refuses as a web service does, with advice, the parameter's name, and a sum of two terms."""

    texts: ClassVar = {
        "duplicate": "A request called '{id}' is still being served. Wait, or choose another name.",
        "empty": "'prompt' has 0 items; send 1 or more.",
        "token": "'prompt[{index}]' must lie in [0, {top}], but {token} was sent.",
        "cap": "'max_tokens' is below its minimum: {cap} < 1.",
        "prompt": "Your prompt ({length} tokens) leaves nothing of a context of {context}.",
        "context": "A context holds {context} tokens. You asked for {length} + {cap}: ask for fewer.",
        "parameter": "We cannot choose tokens with a '{name}' of {value}. Please leave it out.",
        "pool": "The cache keeps {pool} blocks of {size} tokens; you need {needed}.",
    }


@odd
class RefusesByWhatIsLeft(_Worded):
    """Refuses by the room behind the prompt and by the longest prompt, which is one less than the
    context; it looks at the cap first and at the tokens last."""

    texts: ClassVar = {
        "duplicate": "cannot take {id!r} twice at a time",
        "cap": "cannot write {cap} tokens, at least one is required",
        "empty": "no tokens to read, at least one is required",
        "pool": "cannot keep {length} and {cap} tokens in a cache of {cells}",
        "prompt": "cannot read {length} tokens, at most {longest} are possible",
        "context": "cannot write {cap} tokens, at most {room} are possible after reading {length}",
        "parameter": "cannot choose by {value}",
        "token": "token {token} is not among the {vocab} that the model knows",
    }


@odd
class RefusesWithSeparators(_Worded):
    """Refuses with thousands separated by commas, half-open ranges, and two lines of text."""

    texts: ClassVar = {
        "duplicate": "Duplicate!\n  {id} has not finished.",
        "empty": "Empty prompt!\n  Its length is 0.",
        "token": "Bad token!\n  {token:,} at {index:,}; known are 0..{vocab:,}.",
        "cap": "Bad cap!\n  {cap:,} is not positive.",
        "prompt": "Too long!\n  {length:,} tokens of prompt alone; prompt and answer have {context:,}.",
        "context": "Too long!\n  {length:,}+{cap:,}={total:,} tokens; there are {context:,}.",
        "parameter": "Bad choice!\n  {camel} is out of range.",
        "pool": "Too long!\n  {needed:,} blocks; there are {pool:,}.",
    }


@odd
class RefusesInJson(_Worded):
    """Refuses with a JSON object that has all numbers of the request and of the engine."""

    texts = RefusesAsAService.texts

    def _worded(self, check: str, facts: dict[str, Any]) -> str:
        return json.dumps({"refused": check} | facts)
