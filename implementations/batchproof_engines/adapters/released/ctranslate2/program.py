"""CTranslate2's `Generator` behind a pipe (`docs/piped_engines.md`).

Prompts are passed to the library as words, and answers are read as ids: the vocabulary of a converted
model consists of its ids in decimal, whatever tokenizer the folder has. The requests of a call are one
`generate_batch`, which sorts them by length and cuts them into sub-batches of `max_num_seqs`. A row
that has ended leaves its sub-batch; no other takes its place.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.converters import TransformersConverter

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where `serving` lies
from serving import (
    Completion,
    Length,
    Logprobs,
    Request,
    Sampling,
    Unsupported,
    in_calls,
    logprobs_of,
    made_once,
    refused,
    serve,
)
from transformers.utils import logging

NUM_LOADED = 32  # models kept in memory
Answer = tuple[list[int], Any] | Exception  # tokens, and their logits if the call asks for any


class CTranslate2:
    """The library with options of its own."""

    name = "ctranslate2"
    version = ctranslate2.__version__
    capabilities = ("sampling", "logprobs")
    sampling_fields = ("temperature", "top_k", "top_p", "logprobs")

    def __init__(
        self, *, compute_type: str = "float32", include_prompt_in_result: bool = False
    ) -> None:
        self.includes_prompt = include_prompt_in_result
        self._compute_type = compute_type
        prompts = (
            "include_prompt_in_result is set, so prompts are fed token by token: max_length counts the "
            "prompt, which is cut off the answer."
            if include_prompt_in_result
            else "include_prompt_in_result is off, so prompts are fed at once as far as the shortest."
        )
        self.notes = [
            f"compute_type is {compute_type}; the cache holds its float type.",
            prompts,
            Length.note,
        ]

    def build(
        self, folder: str, dtype: str, config: dict[str, Any], num_threads: int
    ) -> GeneratorEngine:
        if dtype == "float64":
            raise Unsupported("it has no compute type as exact as float64")
        length = Length(folder, config)
        generator = _loaded(folder, self._compute_type, num_threads)
        return GeneratorEngine(generator, self.includes_prompt, config["max_num_seqs"], length)


class GeneratorEngine:
    """An engine of one model and configuration."""

    def __init__(
        self, generator: ctranslate2.Generator, includes_prompt: bool, batch_size: int, length: Length
    ) -> None:
        self._length = length
        self._generator = generator
        self._includes_prompt = includes_prompt
        self._batch_size = batch_size

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Returns one completion per request; a second request with the same id is refused."""
        refusals = [self._refusal(each, requests[:index]) for index, each in enumerate(requests)]
        answers = in_calls(
            requests, refusals, lambda each: sorted(_drawing(each).items()), self._answers
        )
        return [_completion(*each) for each in zip(requests, answers, strict=True)]

    def close(self) -> None:
        """Does nothing: the model stays loaded, because it will be needed again."""

    def _refusal(self, request: Request, others: Sequence[Request]) -> str | None:
        """Returns why a request is refused here, which has `others` before it in its call, or None."""
        num_top, name = _asked(request).get("logprobs", 0), request["request_id"]
        if too_long := self._length.refusal(request):
            return too_long
        if num_top < 0:
            return f"logprobs is {num_top}, but must be at least 0"
        # A request that the library refuses, for its prompt is empty, leaves its id to another.
        is_used = any(name == other["request_id"] and other["prompt_token_ids"] for other in others)
        return f"request_id {name!r} is used twice in one call" if is_used else None

    def _answers(self, requests: Sequence[Request]) -> list[Answer]:
        """Returns the answers of one `generate_batch`; an error belongs to a sub-batch or to the whole
        call."""
        prompts = [request["prompt_token_ids"] for request in requests]
        caps = [request["max_new_tokens"] for request in requests]
        fed = [len(prompt) - 1 if self._includes_prompt else 0 for prompt in prompts]
        # With the prompt in the result, max_length counts it, except for its first token.
        max_length = max(cap + num if cap > 0 else cap for cap, num in zip(caps, fed, strict=True))
        try:
            results = self._generator.generate_batch(
                [[str(token_id) for token_id in prompt] for prompt in prompts],
                max_batch_size=self._batch_size,
                asynchronous=True,
                max_length=max_length,
                include_prompt_in_result=self._includes_prompt,
                return_logits_vocab=any("logprobs" in _asked(request) for request in requests),
                end_token=[],
                callback=_stop_each(requests, fed),
                **_drawing(requests[0]),
            )
        except (ValueError, TypeError) as error:
            return [error] * len(requests)
        answers: list[Answer] = []
        for result, before in zip(results, fed, strict=True):
            try:
                found = result.result()
                tokens = found.sequences_ids[0]
            except (ValueError, RuntimeError) as error:
                answers.append(error)
            else:
                new = tokens[before + 1 :] if self._includes_prompt else tokens
                logits = found.logits[0][len(found.logits[0]) - len(new) :] if found.logits else None
                answers.append((new, logits))
        return answers


def _stop_each(requests: Sequence[Request], fed: Sequence[int]) -> Any:
    """Returns a callback that ends each row; it is called for each token that will be in the result."""
    num_calls: Counter[int] = Counter()

    def should_stop(step: ctranslate2.GenerationStepResult) -> bool:
        request, before = requests[step.batch_id], fed[step.batch_id]
        num_calls[step.batch_id] += 1
        num_new = num_calls[step.batch_id] - before
        return num_new > 0 and (
            num_new >= request["max_new_tokens"] or step.token_id in request["eos_token_ids"]
        )

    return should_stop


def _asked(request: Request) -> Sampling:
    return request.get("sampling", {})


def _drawing(request: Request) -> dict[str, float]:
    """Returns the library's options; of one candidate it takes the best."""
    asked = _asked(request)
    if "temperature" not in asked:
        return {"sampling_topk": 1}
    return {
        "sampling_temperature": asked["temperature"],
        "sampling_topk": asked.get("top_k", 0),
        "sampling_topp": asked.get("top_p", 1.0),
    }


def _completion(request: Request, answer: Answer) -> Completion:
    if isinstance(answer, Exception):
        return refused(request, answer)
    tokens, logits = answer
    is_stopped = bool(tokens) and tokens[-1] in request["eos_token_ids"]
    completion = {
        "request_id": request["request_id"],
        "token_ids": tokens,
        "finish_reason": "stop" if is_stopped else "length",
    }
    if "logprobs" in _asked(request):
        pairs = zip(tokens, logits, strict=False)
        completion["logprobs"] = [_logprobs(*pair, _asked(request)["logprobs"]) for pair in pairs]
    return completion


def _logprobs(token: int, logits: ctranslate2.StorageView, num_top: int) -> Logprobs:
    values = np.array(logits, dtype=np.float64)
    return logprobs_of(token, values - np.logaddexp.reduce(values), num_top)


class Numbers:
    """Stands in for a tokenizer: each id is its own word, in decimal.

    The library converts a tokenizer without an unknown token, depending on the model type, to one whose
    unknown token is the empty word or to a model that cannot be loaded. This one declares the empty
    word itself.
    """

    bos_token = eos_token = unk_token = pad_token = ""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def get_vocab(self) -> dict[str, int]:
        return {str(token_id): token_id for token_id in range(self._vocab_size)}


class Converter(TransformersConverter):
    """The library's converter with `Numbers` in the place of the folder's own tokenizer."""

    def load_tokenizer(self, _: Any, folder: str, **__: Any) -> Numbers:
        config = json.loads(Path(folder, "config.json").read_text())
        return Numbers(config.get("text_config", config)["vocab_size"])


@lru_cache(NUM_LOADED)
def _loaded(folder: str, compute_type: str, num_threads: int) -> ctranslate2.Generator:
    where = {"device": "cpu", "inter_threads": 1, "intra_threads": num_threads}
    converted = made_once(Path(folder, CTranslate2.name), partial(_convert, folder))
    return ctranslate2.Generator(str(converted), compute_type=compute_type, **where)


def _convert(folder: str, made: Path) -> None:
    logging.disable_progress_bar()
    try:
        Converter(folder).convert(str(made))
    except (ValueError, NotImplementedError, AttributeError, KeyError) as error:
        raise Unsupported(f"its converter says {error!r}") from error


if __name__ == "__main__":
    serve(CTranslate2)
