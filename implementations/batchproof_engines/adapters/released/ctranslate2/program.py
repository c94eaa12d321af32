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
from collections.abc import Iterator, Sequence
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
    completed,
    in_calls,
    made_once,
    refused,
    serve,
)
from transformers.utils import logging

NUM_LOADED = 32  # models kept in memory
Answer = tuple[list[int], Any] | Exception  # tokens, and their logits if the call asks for any


class CTranslate2:
    """The library with its options.

    `stop_by` is how a row ends at its own cap and EOS ids (`callback` or `call`). With `static_prompt`,
    the common beginning of all prompts of a call is passed as the library's static prompt. The other
    options are the library's own.
    """

    name = "ctranslate2"
    version = ctranslate2.__version__
    capabilities = ("sampling", "logprobs")
    sampling_fields = ("temperature", "top_k", "top_p", "logprobs")

    def __init__(
        self,
        *,
        compute_type: str = "float32",
        include_prompt_in_result: bool = False,
        batch_type: str = "examples",
        stop_by: str = "callback",
        static_prompt: bool = False,
    ) -> None:
        if stop_by not in ("callback", "call"):
            raise ValueError(f"stop_by is {stop_by!r}, but must be callback or call")
        self.includes_prompt = include_prompt_in_result
        self.batch_type = batch_type
        self.stop_by = stop_by
        self.has_static_prompt = static_prompt
        self._compute_type = compute_type
        self.notes = list(self._notes(compute_type))

    def _notes(self, compute_type: str) -> Iterator[str]:
        yield f"compute_type is {compute_type}; the cache holds its float type."
        size = "max_num_seqs" if self.batch_type == "examples" else "max_num_batched_tokens"
        yield (
            f"generate_batch gets all requests of a call, with batch_type {self.batch_type} and "
            f"max_batch_size from {size}; no other limit has a counterpart, so none is given."
        )
        if self.stop_by == "callback":
            yield (
                "max_length and end_token belong to a call: max_length is the largest cap, there is no "
                "end_token, and the callback ends each row at its own cap or EOS, which stays in the "
                "answer."
            )
        else:
            yield (
                "max_length and end_token belong to a call: requests with the same EOS ids are one "
                "call, with their largest cap, and longer answers are cut; return_end_token is set."
            )
        yield "Temperature, top_k and top_p belong to a call: requests with the same ones are one call."
        yield (
            "Logprobs are computed here from the logits of return_logits_vocab, which also has a row "
            "for each token of a prompt that was fed by itself: the answer's are the last."
        )
        yield "A request with a cap below 1 is a call of its own, since max_length belongs to a call."
        if self.includes_prompt:
            yield (
                "include_prompt_in_result is set, so prompts are fed token by token: max_length counts "
                "the prompt, which is cut off the answer."
            )
        else:
            yield "include_prompt_in_result is off, so prompts are fed at once as far as the shortest."
        if self.has_static_prompt:
            yield "What all prompts of a call begin with is its static_prompt, whose state is cached."
        yield "An error fails a whole sub-batch and names no request: each of those is told of it."
        yield "A token id outside of the vocabulary is an unknown word, and there is no unknown token."
        yield Length.note
        yield "There is no finish reason: it is derived from the last token."
        yield "Requests have no ids there: the later of two with one id is refused by the adapter."

    def build(
        self, folder: str, dtype: str, config: dict[str, Any], num_threads: int
    ) -> GeneratorEngine:
        """Returns an engine for the checkpoint, which is converted if necessary. Raises
        `Unsupported`."""
        if dtype == "float64":
            raise Unsupported("it has no compute type as exact as float64")
        length = Length(folder, config)
        generator = _loaded(folder, self._compute_type, num_threads)
        return GeneratorEngine(generator, self, config, length)


class GeneratorEngine:
    """An engine of one model and configuration."""

    def __init__(
        self,
        generator: ctranslate2.Generator,
        options: CTranslate2,
        config: dict[str, Any],
        length: Length,
    ) -> None:
        self._length = length
        self._generator = generator
        self._options = options
        is_by_tokens = options.batch_type == "tokens"
        self._batch_size = config["max_num_batched_tokens" if is_by_tokens else "max_num_seqs"]

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Returns one completion per request; a second request with the same id is refused."""
        refusals = [self._refusal(each, requests[:index]) for index, each in enumerate(requests)]
        answers = in_calls(requests, refusals, self._shared_settings, self._answers)
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

    def _shared_settings(self, request: Request) -> tuple[list[int], list[tuple[str, float]]]:
        """Returns what requests have in common that may share a `generate_batch`."""
        eos = request["eos_token_ids"] if self._options.stop_by == "call" else []
        return eos, sorted(_drawing(request).items())

    def _answers(self, requests: Sequence[Request]) -> list[Answer]:
        """Returns the answers of one `generate_batch`; an error belongs to a sub-batch or to the whole
        call."""
        options = self._options
        prompts = [request["prompt_token_ids"] for request in requests]
        caps = [request["max_new_tokens"] for request in requests]
        shared = _common_beginning(prompts) if options.has_static_prompt else []
        fed = [len(prompt) - len(shared) - 1 if options.includes_prompt else 0 for prompt in prompts]
        # With the prompt in the result, max_length counts it, except for its first token.
        max_length = max(cap + num if cap > 0 else cap for cap, num in zip(caps, fed, strict=True))
        stopping: dict[str, Any] = {"end_token": requests[0]["eos_token_ids"], "return_end_token": True}
        if options.stop_by == "callback":
            stopping = {"end_token": [], "callback": _stop_each(requests, fed)}
        try:
            results = self._generator.generate_batch(
                [_words(prompt[len(shared) :]) for prompt in prompts],
                max_batch_size=self._batch_size,
                batch_type=options.batch_type,
                asynchronous=True,
                max_length=max_length,
                static_prompt=_words(shared) or None,
                include_prompt_in_result=options.includes_prompt,
                return_logits_vocab=any("logprobs" in _asked(request) for request in requests),
                **_drawing(requests[0]),
                **stopping,
            )
        except (ValueError, TypeError) as error:
            return [error] * len(requests)
        answers: list[Answer] = []
        for result, cap, before in zip(results, caps, fed, strict=True):
            try:
                found = result.result()
                tokens = found.sequences_ids[0]
            except (ValueError, RuntimeError) as error:
                answers.append(error)
            else:
                start = before + 1 if options.includes_prompt else 0
                # A row with a limit of its own is passed on as it is.
                is_longer = options.stop_by == "call" and cap + before < max_length
                new = tokens[start:]
                logits = found.logits[0][len(found.logits[0]) - len(new) :] if found.logits else None
                answers.append((new[: cap if is_longer else None], logits))
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
    completion = completed(request, tokens)
    if "logprobs" in _asked(request):
        pairs = zip(tokens, logits, strict=False)
        completion["logprobs"] = [_logprobs(*pair, _asked(request)["logprobs"]) for pair in pairs]
    return completion


def _logprobs(token: int, logits: ctranslate2.StorageView, num_top: int) -> Logprobs:
    values = np.array(logits, dtype=np.float64)
    values -= np.logaddexp.reduce(values)
    likeliest = np.argsort(-values, kind="stable")[:num_top]
    return {
        "logprob": float(values[token]),
        "rank": int((values > values[token]).sum()) + 1,
        "top": [(int(each), float(values[each])) for each in likeliest],
    }


def _words(token_ids: Sequence[int]) -> list[str]:
    return [str(token_id) for token_id in token_ids]


def _common_beginning(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Returns the longest common prefix that leaves each prompt a token of its own to choose the next
    from."""
    shortest = min(len(prompt) for prompt in prompts)
    beginning = [tokens[0] for tokens in zip(*prompts, strict=False)]
    length = next(
        (i for i in range(shortest) if any(prompt[i] != beginning[i] for prompt in prompts)), shortest
    )
    return beginning[: max(0, min(length, shortest - 1))]


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
