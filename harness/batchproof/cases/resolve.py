"""From a case to the workloads of one model: symbolic prompts, caps and EOS ids become numbers."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

from batchproof.api import EngineConfig, FinishReason, Limits, Request
from batchproof.cases.schema import (
    Case,
    ContextCap,
    ContextPrompt,
    EosRef,
    Prompt,
    RandomPrompt,
    RequestSpec,
    TextPrompt,
    TokenPrompt,
)
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.choosing import is_drawn
from batchproof.oracle.oracle import Oracle
from batchproof.workload.workloads import Workload


def workloads_of(case: Case, oracle: Oracle, return_logits: bool = False) -> list[Workload]:
    """Returns one workload for each call. Raises `CaseError` if the model has no such token, or if a
    request is not good or bad as the case says."""
    made = []
    for call in case.calls:
        arrivals = tuple(spec.arrive or 0 for spec in call)
        is_timed = any(spec.arrive is not None for spec in call)
        aborts = tuple((spec.request_id, step) for spec in call for step in spec.aborts)
        workload = Workload(
            tuple(request_of(spec, oracle, case.config) for spec in call),
            case.config,
            arrivals if is_timed else None,
            aborts + case.abort_unknown,
        )
        made.append(workload.with_config(return_logits=return_logits))
    return made


def request_of(spec: RequestSpec, oracle: Oracle, config: EngineConfig) -> Request:
    """Returns the request on this model. Raises `CaseError` as `workloads_of` does."""
    subject = oracle.subject
    context_len = min(subject.context_len, config.max_model_len or sys.maxsize)
    prompt = _prompt_token_ids(spec.prompt, subject, context_len)
    cap = context_len - len(prompt) + spec.cap.offset if isinstance(spec.cap, ContextCap) else spec.cap
    plain = Request(spec.request_id, prompt, cap, sampling=spec.sampling)
    refusal = Limits.of(subject.model, config).refusal(plain)
    if refusal is not None and not spec.is_bad:
        raise spec.place.error(
            f"request {spec.request_id!r} is a bad one on {subject.name} ({refusal}); "
            f"if that is meant, say expect: {{finish: error}}"
        )
    if refusal is not None or not spec.eos:
        return plain
    answer = oracle.right_tokens(prompt, cap)
    eos = frozenset(_eos_id(spec, item, prompt, answer) for item in spec.eos)
    return replace(plain, eos_token_ids=eos)


def _prompt_token_ids(prompt: Prompt, subject: ModelUnderTest, context_len: int) -> tuple[int, ...]:
    match prompt:
        case TokenPrompt(ids):
            return ids
        case TextPrompt(text):  # an empty text is empty, whatever a tokenizer would add
            return subject.encode(text) if text else ()
        case RandomPrompt(length, seed):
            rng = random.Random(seed)
            return tuple(rng.randrange(subject.vocab_size) for _ in range(length))
        case ContextPrompt(offset, seed):
            length = max(context_len + offset, 0)
            return _prompt_token_ids(RandomPrompt(length, seed), subject, context_len)


def _eos_id(
    spec: RequestSpec, item: int | EosRef, prompt: tuple[int, ...], answer: tuple[int, ...]
) -> int:
    if isinstance(item, int):
        return item
    only = tuple(token for token in prompt if token not in answer)
    tokens = {"ref": answer, "prompt": prompt, "prompt-only": only}[item.source]
    index = len(tokens) - 1 if item.index is None else item.index
    if index >= len(tokens):
        raise spec.place.error(f"eos {item} does not exist: there are {len(tokens)} such tokens")
    return tokens[index]


def slips(case: Case, oracle: Oracle) -> list[tuple[RequestSpec, str]]:
    """Returns the requests whose right answer does not end as the case expects, and how it ends."""
    found = []
    for spec in case.requests:
        finish, num_tokens = spec.expect.finish, spec.expect.num_tokens
        if finish in (FinishReason.ERROR, FinishReason.ABORTED):
            continue
        request = request_of(spec, oracle, case.config)
        if not oracle.subject.has_answer(request.prompt_token_ids) or is_drawn(request):
            continue
        token_ids, reason = oracle.expected(request)
        if finish not in (None, reason) or num_tokens not in (None, len(token_ids)):
            found.append((spec, f"{len(token_ids)} tokens, and finish {reason}"))
    return found
