"""The answer to a bad request: an error without tokens that names value and rule (promise P12)."""

import re
from collections.abc import Iterator, Sequence
from math import ceil

from batchproof.api import Completion, EngineConfig, FinishReason, Request, SamplingParams, TokenEvent
from batchproof.findings.finding import Finding, Rule, found
from batchproof.models.catalogue import ModelUnderTest
from batchproof.records.trial_record import Ledger
from batchproof.requirements.promises import Promise
from batchproof.workload.workloads import Workload

# How an engine may say 0, or that 0 is not allowed, without the digit.
NONE = re.compile(
    r"empty|blank|nothing|none|missing|without|zero|positive|negative|at least one|required|provide"
    r"|\bno\b|\[ *\]|\( *\)|''|\"\"",
    re.IGNORECASE,
)
NUMBER = re.compile(r"-?\d{1,20}")
DECIMAL = re.compile(r"-?\d{1,20}(?:\.\d+)?(?:e[+-]?\d{1,3})?", re.IGNORECASE)
SEPARATOR = re.compile(r"(?<=\d)[,_'\u2019\u00a0\u202f ](?=\d{3}(?!\d))")  # 4,096 or 4_096

# What a parameter is called besides its own name.
ALIASES = {
    "temperature": r"temp",
    "top_p": r"nucleus",
    "repetition_penalty": r"repetitions?|repeat[\W_]*penalty|rep[\W_]*pen",
    "presence_penalty": r"presence",
    "frequency_penalty": r"frequency|freq[\W_]*pen(?:alty)?",
    "logit_bias": r"bias(?:es)?",
    "allowed_token_ids": r"allow(?:ed)?(?:[\W_]*(?:tokens?|ids))?",
    "min_tokens": r"minimum",
    "stop_token_sequences": r"stops?(?:[\W_]*(?:words?|strings?|sequences?|tokens?|ids))?",
}
TOKENS = {"logit_bias", "allowed_token_ids"}


def refusal_findings(completion: Completion, request: Request, ledger: Ledger) -> Iterator[Finding]:
    """Yields a finding unless the request is refused; counts the answer in the ledger."""
    if completion.finish_reason is not FinishReason.ERROR or completion.token_ids:
        yield found(
            Rule.REFUSED,
            request.request_id,
            finish_reason=completion.finish_reason.value,
            num_tokens=len(completion.token_ids),
            cap=request.max_new_tokens,
            num_prompt_tokens=len(request.prompt_token_ids),
        )
    ledger.num_requests += 1


def event_findings(
    events: Sequence[tuple[int, TokenEvent]], request_id: str, promise: Promise = Promise.P14
) -> Iterator[Finding]:
    """Yields a finding unless the request has one event, an error that says why."""
    own = [event for _, event in events if event.request_id == request_id]
    if len(own) != 1 or own[0].finish_reason is not FinishReason.ERROR or not own[0].error:
        yield found(Rule.REFUSAL_EVENT, request_id, promise=promise, got=str(own))


def word_findings(
    workload: Workload, completions: Sequence[Completion], subject: ModelUnderTest, ledger: Ledger
) -> Iterator[Finding]:
    """Yields refusals whose words say nothing of what is wrong; counts refusals.

    They must name one value of the request that is at fault, or one limit in force that it breaks,
    in any of the forms of `_numbers`: which of the limits that a request breaks is found first, and
    how it is worded, is up to the engine.
    """
    poor: list[tuple[str, str]] = []
    live: set[str] = set()
    for request, completion in zip(workload.requests, completions, strict=True):
        if completion.finish_reason is FinishReason.ERROR:
            words, twin = str(completion.error or ""), request.request_id in live
            if not _names_fault(words, request, twin, workload.config, subject):
                poor.append((request.request_id, words))
            ledger.num_requests += 1
        live.add(request.request_id)
    if poor:
        others = [f"request {name!r} was refused with {words!r}" for name, words in poor[1:]]
        yield found(Rule.REFUSAL_WORDS, poor[0][0], error=poor[0][1], others=others)


def _names_fault(
    words: str, request: Request, is_twin: bool, config: EngineConfig, subject: ModelUnderTest
) -> bool:
    if is_twin and request.request_id in words:
        return True
    words = words.replace(request.request_id, "")  # which says who, but not what
    if (not request.prompt_token_ids or request.max_new_tokens < 1) and NONE.search(words):
        return True
    asked = request.sampling
    if asked is not None and _names_parameter(words, asked, request, subject.vocab_size):
        return True
    return not _said(words).isdisjoint(_numbers(request, config, subject))


def _names_parameter(words: str, asked: SamplingParams, request: Request, vocab_size: int) -> bool:
    """Returns whether the words name a parameter at fault, or its value; of an unknown token also the
    size of the vocabulary."""
    plain, joined = _readings(words)
    said = {float(each) for text in (plain, joined) for each in DECIMAL.findall(text)}
    for name in _at_fault(asked, request, vocab_size):
        spelt = "|".join(filter(None, (r"[\W_]*".join(name.split("_")), ALIASES.get(name))))
        if re.search(rf"(?<![a-z])(?:{spelt})(?![a-z_])", plain, re.IGNORECASE):
            return True
        values = {*_flat(getattr(asked, name))}
        is_none = not values or min(values) <= 0
        limits = {vocab_size - 1, vocab_size} if name in TOKENS else set()
        if said & (values | limits) or (is_none and NONE.search(words)):
            return True
    return False


def _at_fault(asked: SamplingParams, request: Request, vocab_size: int) -> list[str]:
    """Returns the parameters that are wrong by themselves, else all that are set."""
    wrong = [
        name
        for name in asked.changed
        if asked.within({name}).refusal(vocab_size, request.max_new_tokens, request.eos_token_ids)
    ]
    return wrong or asked.changed


def _flat(value: object) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, tuple | frozenset):
        for each in value:
            yield from _flat(each)


def _readings(words: str) -> tuple[str, str]:
    """Returns the words with plain minus signs, and with numbers joined at separators besides."""
    plain = words.replace("\u2212", "-")
    return plain, SEPARATOR.sub("", plain)


def _said(words: str) -> set[int]:
    """Returns the numbers in the words, with and without a sign, and joined at separators."""
    found = {int(each) for text in _readings(words) for each in NUMBER.findall(text)}
    return found | {abs(each) for each in found}


def _numbers(request: Request, config: EngineConfig, subject: ModelUnderTest) -> Iterator[int]:
    """Yields the numbers that name what is wrong: values at fault, and limits that they break.

    A limit is named by its largest allowed or its smallest forbidden value, by what it leaves behind
    the prompt, or by how far it is exceeded; a pool also in blocks.
    """
    prompt, cap, vocab_size = request.prompt_token_ids, request.max_new_tokens, subject.vocab_size
    for place, token in enumerate(prompt):
        if not 0 <= token < vocab_size:
            yield from (token, place, vocab_size - 1, vocab_size)
    if not prompt or cap < 1:
        yield from (0, 1, cap) if prompt else (0, 1)
    total, size = len(prompt) + cap, config.block_size
    pool = config.num_blocks and config.num_blocks * size + 1  # the last token is never fed
    limits = (subject.context_len, config.max_model_len, config.max_num_batched_tokens, pool)
    for limit in filter(None, limits):
        if total > limit:
            yield from (len(prompt), cap, total, total - 1, limit - len(prompt), total - limit)
            yield from (limit - 1, limit, limit + 1)
    if pool and total > pool:
        yield from (config.num_blocks or 0, ceil(total / size), ceil((total - 1) / size))
