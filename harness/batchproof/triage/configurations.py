"""The settings that an engine may have beside what it is asked, as a table: each says which request
its answers are right answers to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from operator import add, itemgetter
from typing import Any

from torch import Tensor

from batchproof.api import Completion, FinishReason, Request, SamplingParams
from batchproof.checks.answers import are_known, of_each, structure_findings
from batchproof.checks.draws import LEAST_EXPECTED, cells_of
from batchproof.findings.finding_text import headline
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.choosing import amplification, processed, sampling_of
from batchproof.oracle.distributions import answer_probabilities
from batchproof.oracle.oracle import Oracle, Prompt, Scored
from batchproof.oracle.precision import Precision
from batchproof.run.registry import reference_factory
from batchproof.statistics import g_test

SMALL_VOCABULARY = 1024  # of which every token is tried as one put before the prompt
REPETITION_PENALTIES = (1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.5)
TEMPERATURES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
TOP_PS = (1.0, 0.95, 0.9, 0.8)
LEAST_P_VALUE = 1e-3  # of draws that a temperature explains
MOST_AT_ONCE = 4096  # tokens of one pass
COARSER = (  # than the model as it is served; what an honest engine may compute in
    Precision("float16"),
    Precision(None, kv_cache="int8"),
    Precision("bfloat16"),
    Precision("bfloat16", kv_cache="int8"),
)


@dataclass(frozen=True)
class Answered:
    request: Request
    completion: Completion


@dataclass(frozen=True)
class Configuration:
    """`asked` maps a request to the one that the engine effectively answered. `is_drawn`: no token is
    the right one."""

    name: str
    asked: Callable[[Request], Request] = lambda request: request
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
        yield Configuration(
            f"every answer also stops at token {token}, an EOS of the engine's own",
            partial(_ending_at, token),
        )
    for length in dict.fromkeys(map(len, cut)):
        yield Configuration(
            f"every answer is cut at {length} tokens, a limit of the engine's own",
            partial(_cut_at, length),
        )
    yield Configuration("EOS ids are ignored (ignore_eos)", partial(replace, eos_token_ids=frozenset()))


def _ending_at(token: int, request: Request) -> Request:
    return replace(request, eos_token_ids=request.eos_token_ids | {token})


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
        _, observed, expected = cells_of(counts, shares)
        _, p_values[asked] = g_test(observed, expected)
    best = max(p_values, key=lambda each: p_values[each], default=None)
    if best is None or p_values[best] < LEAST_P_VALUE:
        return None
    cut = f" and top_p {best.top_p:g}" if best.top_p < 1 else ""
    name = f"tokens are drawn: about temperature {best.temperature:g}{cut} by default"
    return Configuration(name, partial(replace, sampling=best), is_drawn=True)


@dataclass(frozen=True)
class Bounds:
    """Regrets that rounding explains, 2 kappa E, by precision, the smallest first. A constructed model
    has one of 0: no rounding bridges its margins."""

    by_precision: tuple[tuple[str, float], ...]
    unit: float | None = None  # E as served; None for a constructed model
    tight: float = 0.0  # of the model as it is served

    @property
    def coarse(self) -> float:
        return self.by_precision[-1][1]

    def precision_of(self, regret: float) -> str:
        return next((name for name, bound in self.by_precision if regret <= bound), "no precision")


def measured_bounds(oracle: Oracle) -> Bounds:
    """Measures the reference at each precision against float64. Raises `OracleError`."""
    subject = oracle.subject
    if subject.oracle is not None:
        return Bounds((("exact", 0.0),))
    oracles = {f"{subject.dtype_name}, as served": oracle}
    for precision in COARSER:
        if precision.compute != subject.dtype_name:
            oracles[str(precision)] = Oracle(subject, reference_factory(), precision)
    bounds = [(name, 2 * each.logit_bound) for name, each in oracles.items()]
    in_order = tuple(sorted(bounds, key=lambda each: each[1]))
    return Bounds(in_order, oracle.error.max_abs, 2 * oracle.logit_bound)


@dataclass(frozen=True)
class Reading:
    """One answer under a configuration. `request` is as it was asked; `worst` is the largest regret, in
    units of what penalties amplify, infinite if something else is wrong; `words` say where it is."""

    request: Request
    num_tokens: int
    worst: float = 0.0
    words: str = ""


def readings(
    oracle: Oracle, configuration: Configuration, answers: Sequence[Answered]
) -> list[Reading]:
    asked = [configuration.asked(each.request) for each in answers]
    pairs = [
        (request.prompt_token_ids, tuple(each.completion.token_ids))
        for request, each in zip(asked, answers, strict=True)
    ]
    scores = _scores(oracle, [each for each in pairs if _is_scorable(oracle, *each)])
    found = []
    for given, request, pair in zip(answers, asked, pairs, strict=True):
        is_longer = len(pair[0]) > len(given.request.prompt_token_ids)
        if is_longer and given.completion.finish_reason is FinishReason.ERROR:  # it does not fit
            found.append(Reading(given.request, 0))
        else:
            worst, words = _worst(request, given.completion, scores.get(pair))
            found.append(Reading(given.request, len(pair[1]), worst, words))
    return found


def _is_scorable(oracle: Oracle, prompt: Prompt, tokens: tuple[int, ...]) -> bool:
    fits = len(prompt) + len(tokens) <= oracle.subject.context_len
    return fits and bool(tokens) and are_known(tokens, oracle)


def _scores(oracle: Oracle, wanted: Sequence[Scored]) -> dict[Scored, Tensor]:
    """Float64 logits of each prompt with an engine's tokens, in passes of limited size."""
    waiting = sorted(dict.fromkeys(wanted), key=lambda each: len(each[0]) + len(each[1]))
    found: dict[Scored, Tensor] = {}
    while waiting:
        longest = len(waiting[-1][0]) + len(waiting[-1][1])
        share = waiting[-max(1, MOST_AT_ONCE // longest) :]
        del waiting[-len(share) :]
        found.update(zip(share, oracle.score_all(share), strict=True))
    return found


def _worst(request: Request, answer: Completion, logits: Tensor | None) -> tuple[float, str]:
    if slip := next(structure_findings(request, answer), None):
        return float("inf"), headline(slip)
    if logits is None:
        return float("inf"), "it holds a token outside the vocabulary"
    asked = sampling_of(request)
    if asked.changes_logits:
        logits = processed(logits, request, answer.token_ids)
    taken = of_each(logits, answer.token_ids)
    regret, step = (logits.amax(dim=-1) - taken).max(dim=0)
    words = f"token {int(step)}: {answer.token_ids[int(step)]} is {float(regret):.3g} below the best"
    return float(regret) / amplification(asked), words


def explaining_configuration(
    oracle: Oracle, bounds: Bounds, answers: Sequence[Answered]
) -> Configuration | None:
    """The configuration under which all answers are right; None if none in the table is.

    As asked, if rounding of the model as it is served explains the answers, else a configuration under
    which it does. Then the same with the coarsest rounding.
    """
    plain = readings(oracle, AS_ASKED, answers)
    worst = max(each.worst for each in plain)
    if worst <= bounds.tight:
        return AS_ASKED
    # The shortest prompts with a large regret are first: most configurations fail at them.
    order = sorted(
        range(len(plain)),
        key=lambda i: (-min(plain[i].worst, 1.0), len(plain[i].request.prompt_token_ids)),
    )
    ordered = [answers[i] for i in order]
    shortest = min(len(e.request.prompt_token_ids) for e in plain if e.worst > bounds.tight)
    tried = [*configurations(oracle.subject, ordered, shortest)]
    for bound in dict.fromkeys((bounds.tight, bounds.coarse)):
        if worst <= bound:
            return AS_ASKED
        for each in tried:
            shares = (ordered[:1], ordered[1:4], ordered[4:])
            if all(r.worst <= bound for share in shares for r in readings(oracle, each, share)):
                return each
    return None
