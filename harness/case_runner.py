"""Runs a curated case: makes it concrete for one model, gives all its calls to one engine, and judges.

Good requests are judged by the oracle, bad ones must be refused in the words the case names, aborted
ones must hold a beginning of the right answer. The trace must obey its invariants and show the events
the case was written for: a case whose event did not happen has proved nothing, and fails.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch

from harness import happened, trace
from harness.api import Capability, Completion, Engine, EngineConfig, FinishReason, Limits, Request
from harness.api import StepRecord
from harness.case_schema import (
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
from harness.compare import check_completions, check_order, check_tokens
from harness.errors import EngineHang
from harness.models.catalogue import ModelUnderTest
from harness.oracle import Oracle
from harness.promises import Promise
from harness.trial import Trial
from harness.verdict import ConformanceFailure
from harness.workloads import Outcome, Workload

# Promises about what is answered: a wrong token in a case of theirs breaks them, not only P1.
ABOUT_ANSWERS = {Promise.P5, Promise.P6, Promise.P7, Promise.P8, Promise.P12, Promise.P13, Promise.P16}


def run_case(trial: Trial, case: Case) -> None:
    """Raises `ConformanceFailure` if the engine breaks a promise, `CaseError` if the case does not hold
    on this model."""
    workloads = workloads_of(case, trial.oracle, trial.has_logits and not case.needs_stepping)
    _check_case_holds(trial, case, workloads)
    with _telling(case), _untouched(trial) if case.promise is Promise.P15 else nullcontext():
        with trial.reporting(workloads[0]):
            engine = trial.build(workloads[0].config)
        try:
            _run_calls(trial, case, workloads, engine)
        finally:
            trial.close(engine)


def _run_calls(trial: Trial, case: Case, workloads: Sequence[Workload], engine: Engine) -> None:
    traces: list[Sequence[StepRecord]] = []
    outcomes: list[Outcome] = []
    for call, workload in zip(case.calls, workloads, strict=True):
        outcomes.append(trial.run(workload, engine))
        with trial.reporting(workload):
            _judge(trial, case, list(zip(call, workload.requests, strict=True)), outcomes[-1])
            if Capability.TRACING in trial.capabilities:
                done = sum(map(len, traces))
                traces.append(tuple(engine.trace)[done:])  # type: ignore[attr-defined]
                _check_trace(trial, case, workload, outcomes[-1], traces[-1])
    with trial.reporting(workloads[-1]):
        _check_events(case, traces)
        if case.promise is Promise.P16:
            _check_repeats(workloads, outcomes)


def workloads_of(case: Case, oracle: Oracle, return_logits: bool = False) -> list[Workload]:
    """One workload a call, concrete for the oracle's model. Raises `CaseError`."""
    made = []
    for call in case.calls:
        arrivals = tuple(spec.arrive or 0 for spec in call)
        is_timed = any(spec.arrive is not None for spec in call)
        aborts = tuple((spec.request_id, step) for spec in call for step in spec.aborts)
        requests = tuple(_request(spec, oracle, case.config) for spec in call)
        workload = Workload(
            requests, case.config, arrivals if is_timed else None, aborts + case.abort_unknown
        )
        made.append(workload.with_config(return_logits=return_logits))
    return made


def _request(spec: RequestSpec, oracle: Oracle, config: EngineConfig) -> Request:
    context_len = min(oracle.subject.context_len, config.max_model_len or sys.maxsize)
    prompt = _prompt_token_ids(spec.prompt, oracle.subject, context_len)
    cap = context_len - len(prompt) + spec.cap.offset if isinstance(spec.cap, ContextCap) else spec.cap
    plain = Request(spec.request_id, prompt, cap)
    refusal = Limits.of(oracle.subject.model, config).refusal(plain)
    if refusal is not None and not spec.is_bad:
        raise spec.place.error(
            f"request {spec.request_id!r} is a bad one on {oracle.subject.name} ({refusal}); "
            f"if that is meant, say expect: {{finish: error}}"
        )
    if refusal is not None or not spec.eos:
        return plain
    answer = oracle.answer(prompt, cap).token_ids
    eos = frozenset(_eos_id(spec, item, prompt, answer) for item in spec.eos)
    return Request(spec.request_id, prompt, cap, eos)


def _prompt_token_ids(prompt: Prompt, subject: ModelUnderTest, context_len: int) -> tuple[int, ...]:
    match prompt:
        case TokenPrompt(ids):
            return ids
        case TextPrompt(text):
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


def _check_case_holds(trial: Trial, case: Case, workloads: Sequence[Workload]) -> None:
    """Are the expected ends those of the right answers? On an embedded model they must be; a foreign
    checkpoint may repeat a token where the case thinks of two, which is no fault of its engine."""
    for call, workload in zip(case.calls, workloads, strict=True):
        for spec, request in zip(call, workload.requests, strict=True):
            finish, num_tokens = spec.expect.finish, spec.expect.num_tokens
            if finish in (FinishReason.ERROR, FinishReason.ABORTED):
                continue
            token_ids, reason = trial.oracle.expected(request)
            if finish in (None, reason) and num_tokens in (None, len(token_ids)):
                continue
            text = (
                f"request {spec.request_id!r} cannot end as expected: on {trial.subject.name} its right "
                f"answer has {len(token_ids)} tokens and ends with {reason}"
            )
            if trial.subject.is_embedded:
                raise spec.place.error(text)
            trial.ledger.notes.append(f"{spec.place}: {text}")


@contextmanager
def _telling(case: Case) -> Iterator[None]:
    """Adds the case's name, place and reason to whatever goes wrong."""
    story = [f"case {case.name} ({case.place}): {case.why}", *([case.link] if case.link else [])]
    try:
        yield
    except ConformanceFailure as failure:
        failure.evidence += story
        raise
    except EngineHang as hang:
        raise EngineHang("\n".join([str(hang), *story])) from None


def _judge(
    trial: Trial, case: Case, asked: list[tuple[RequestSpec, Request]], outcome: Outcome
) -> None:
    check_order([request for _, request in asked], outcome.completions)
    good: list[tuple[Request, Completion]] = []
    for (spec, request), completion in zip(asked, outcome.completions, strict=True):
        may_end_early = bool(spec.aborts) and spec.expect.finish is None
        if spec.is_bad:
            _check_refused(case, spec, completion)
        elif spec.expect.finish is FinishReason.ABORTED or (
            may_end_early and completion.finish_reason is FinishReason.ABORTED
        ):
            _check_aborted(trial, case, spec, request, completion)
        else:
            good.append((request, completion))
    try:
        check_completions([r for r, _ in good], [c for _, c in good], trial.oracle, trial.ledger)
    except ConformanceFailure as failure:
        is_answer = failure.promise is Promise.P1 and case.promise in ABOUT_ANSWERS
        if is_answer or failure.promise is Promise.P12:  # P12: a good request was refused
            failure.promise = case.promise
        raise


def _check_refused(case: Case, spec: RequestSpec, completion: Completion) -> None:
    where = f"request {spec.request_id!r}"
    if completion.finish_reason is not FinishReason.ERROR or completion.token_ids:
        raise ConformanceFailure(
            case.promise,
            f"{where} ended with {completion.finish_reason} and {len(completion.token_ids)} tokens, "
            f"but is a bad one and should end with error and none",
        )
    message = completion.error or ""
    missing = [word for word in spec.expect.error_words if word.lower() not in message.lower()]
    if missing or not message:
        raise ConformanceFailure(
            case.promise,
            f"the error of {where} reads {message!r}, but should name {missing or 'value and rule'}",
        )


def _check_aborted(
    trial: Trial, case: Case, spec: RequestSpec, request: Request, completion: Completion
) -> None:
    where, tokens = f"request {spec.request_id!r}", completion.token_ids
    if completion.finish_reason is not FinishReason.ABORTED:
        raise ConformanceFailure(
            case.promise, f"{where} ended with {completion.finish_reason}, but should be aborted"
        )
    most = len(trial.oracle.expected(request)[0])
    should_be = spec.expect.num_tokens
    if len(tokens) > most or should_be not in (None, len(tokens)):
        raise ConformanceFailure(
            case.promise,
            f"{where} was aborted with {len(tokens)} tokens, but should have "
            f"{should_be if should_be is not None else f'at most {most}'}",
        )
    check_tokens(request, completion, trial.oracle, trial.ledger)
    trial.ledger.num_steps += len(tokens)


def _check_trace(
    trial: Trial, case: Case, workload: Workload, outcome: Outcome, records: Sequence[StepRecord]
) -> None:
    """The invariants of `harness/trace.py`. Aborts leave no mark in a trace: there only the end counts."""
    served = [c for c in outcome.completions if c.finish_reason is not FinishReason.ERROR]
    if workload.aborts:
        last_token = max((s for s, e in outcome.events if e.token_id is not None), default=-1)
        if last_token >= max(step for _, step in workload.aborts):
            last = records[-1]
            if last.num_free_blocks != last.num_total_blocks:
                raise ConformanceFailure(
                    case.promise,
                    f"at the end {last.num_free_blocks} of {last.num_total_blocks} blocks are free",
                )
        return
    kept = [
        (request, arrival)
        for request, arrival, completion in zip(
            workload.requests,
            workload.arrivals or (0,) * len(workload.requests),
            outcome.completions,
            strict=True,
        )
        if completion in served
    ]
