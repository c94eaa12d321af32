"""The settings that an engine may have beside what it is asked, as a table: each says which request
its answers are right answers to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from operator import add, itemgetter
from typing import Any

from batchproof.api import Completion, Request, SamplingParams
from batchproof.checks.broken import BrokenPromise
from batchproof.checks.draws import LEAST_EXPECTED, check_counts
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.distributions import answer_probabilities
from batchproof.oracle.oracle import Oracle, Prompt

SMALL_VOCABULARY = 1024  # of which every token is tried as one put before the prompt
REPETITION_PENALTIES = (1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.5)
TEMPERATURES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
TOP_PS = (1.0, 0.95, 0.9, 0.8)
LEAST_P_VALUE = 1e-3  # of draws that a temperature explains

Asked = Callable[[Request], Request]


@dataclass(frozen=True)
class Answered:
    """A request with its answer."""

    request: Request
    completion: Completion


def _same(request: Request) -> Request:
    return request


@dataclass(frozen=True)
class Configuration:
    """`asked` maps a request to the one that the engine effectively answered. `is_drawn`: no token is
    the right one."""

    name: str
    asked: Asked = _same
    is_drawn: bool = False


AS_ASKED = Configuration("as asked")


def configurations(
    subject: ModelUnderTest, answers: Sequence[Answered], shortest_wrong: int
) -> Iterator[Configuration]:
    """Yields the table, the likeliest first. `answers` give the EOS and the cap of an engine's own;
    `shortest_wrong` is the length of the shortest prompt that is not answered as asked."""
    yield from _ends(answers)
    for token in _special_tokens(subject):
        yield _fed(f"token {token} stands before each prompt (BOS)", partial(add, (token,)))
    for length in range(1, shortest_wrong):
        last, first = itemgetter(slice(-length, None)), itemgetter(slice(length))
        yield _fed(f"only the last {length} tokens of a prompt are read", last)
        yield _fed(f"only the first {length} tokens of a prompt are read", first)
    if getattr(subject.tokenizer, "chat_template", None):
        yield _fed("the tokenizer's chat template surrounds each prompt", partial(_chat_turn, subject))
    for penalty in REPETITION_PENALTIES:
        asked = SamplingParams(repetition_penalty=penalty)
        yield Configuration(
            f"repetition_penalty {penalty:g} by default", partial(replace, sampling=asked)
        )


def _ends(answers: Sequence[Answered]) -> Iterator[Configuration]:
    cut = [
        tokens
        for each in answers
        if 0 < len(tokens := each.completion.token_ids) < each.request.max_new_tokens
        and tokens[-1] not in each.request.eos_token_ids
    ]
    for token in dict.fromkeys(tokens[-1] for tokens in cut):
        name = f"every answer also stops at token {token}, an EOS of the engine's own"
        yield Configuration(name, partial(_ending_at, frozenset({token})))
    for length in dict.fromkeys(map(len, cut)):
        name = f"every answer is cut at {length} tokens, a limit of the engine's own"
        yield Configuration(name, partial(_cut_at, length))
    yield Configuration("EOS ids are ignored (ignore_eos)", partial(replace, eos_token_ids=frozenset()))


def _ending_at(tokens: frozenset[int], request: Request) -> Request:
    return replace(request, eos_token_ids=request.eos_token_ids | tokens)


def _cut_at(length: int, request: Request) -> Request:
    return replace(request, max_new_tokens=min(length, request.max_new_tokens))


def _fed(name: str, feed: Callable[[Prompt], Prompt]) -> Configuration:
    return Configuration(name, lambda r: replace(r, prompt_token_ids=feed(r.prompt_token_ids)))


def _special_tokens(subject: ModelUnderTest) -> Sequence[int]:
    if subject.vocab_size <= SMALL_VOCABULARY:
        return range(subject.vocab_size)
    config: Any = subject.model.config.get_text_config()
    named = [getattr(config, f"{each}_token_id", None) for each in ("bos", "eos", "pad")]
    special = list(getattr(subject.tokenizer, "all_special_ids", ()))
    flat = [t for each in named for t in (each if isinstance(each, list) else [each])]
    return [*dict.fromkeys(t for t in (*flat, *special, 0, 1, 2) if isinstance(t, int))]


def _chat_turn(subject: ModelUnderTest, prompt: Prompt) -> Prompt:
    tokenizer: Any = subject.tokenizer
    turn = [{"role": "user", "content": subject.decode(prompt)}]
    return tuple(tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False))


def drawn_configuration(
    oracle: Oracle, prompt: Prompt, counts: Mapping[tuple[int, ...], int]
) -> Configuration | None:
    """The temperature that best explains how often each first token was answered to one prompt; None
    if none does, or if it was always the same token. The test is that of promise P19."""
    if len(counts) < 2:
        return None
    p_values: dict[SamplingParams, float] = {}
    for temperature, top_p in product(TEMPERATURES, TOP_PS):
        asked = SamplingParams(temperature=temperature, top_p=top_p)
        request = Request("draw", prompt, 1, sampling=asked)
        shares = answer_probabilities(oracle, request)
        if (1 - max(shares.values())) * sum(counts.values()) < LEAST_EXPECTED:
            continue  # a test of a single cell, which any counts pass
        try:
            p_values[asked] = check_counts(request, counts, shares)
        except BrokenPromise:
            continue
    best = max(p_values, key=lambda each: p_values[each], default=None)
    if best is None or p_values[best] < LEAST_P_VALUE:
        return None
    cut = f" and top_p {best.top_p:g}" if best.top_p < 1 else ""
    name = f"tokens are drawn: about temperature {best.temperature:g}{cut} by default"
    return Configuration(name, partial(replace, sampling=best), is_drawn=True)
