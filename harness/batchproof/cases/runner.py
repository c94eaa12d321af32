"""Runs a curated case: one engine for all its calls, every answer judged.

Good requests are judged by the oracle, bad ones must be refused, and aborted ones must return a
beginning of the right answer. The trace must obey its invariants and show the events the case was
written for: a case whose event did not happen proves nothing, and fails.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from batchproof.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    FinishReason,
    Limits,
    Request,
    StepRecord,
)
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
from batchproof.checks import happened
from batchproof.checks.answers import check_order, completion_findings, token_findings
from batchproof.checks.broken import broken, require
from batchproof.checks.conduct import conduct_findings
from batchproof.checks.environment import require_same, settings_of, world_of
from batchproof.checks.prefixes import Computed
from batchproof.checks.refusals import require_refused
from batchproof.checks.trace import is_unforeseen
from batchproof.findings.finding import CaseNote, Facts, Finding, Rule
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.choosing import is_drawn
from batchproof.oracle.oracle import Oracle
from batchproof.requirements.promises import Promise
from batchproof.run.failures import ConformanceFailure, HangFailure
from batchproof.run.trial import Trial
from batchproof.workload.workloads import Outcome, Workload


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


# Promises about the content of answers: a wrong token in their cases breaks them, too, not P1 alone.
ABOUT_ANSWERS = {Promise.P5, Promise.P6, Promise.P7, Promise.P8, Promise.P12, Promise.P13, Promise.P16}


def run_case(trial: Trial, case: Case) -> None:
    """Runs a curated case, with its symbolic prompts made concrete for this model.

    Raises `ConformanceFailure` if the engine breaks a promise, `HangFailure` if it hangs, and
    `CaseError` if the case does not hold on this model.
    """
    # A constructed model shows a lost key in its tokens; the others show more in their logits.
    wants_logits = trial.has_logits and not case.needs_stepping and trial.subject.oracle is None
    workloads = workloads_of(case, trial.oracle, wants_logits)
    _check_case_holds(trial, case)
    with _noting(CaseNote(case.name, str(case.place), case.why, case.link)):
        run_calls(trial, case, workloads)


def run_calls(trial: Trial, case: Case, workloads: Sequence[Workload]) -> None:
    """Gives one engine these workloads, one for each call of the case, and judges them as the case
    says.

    Raises `ConformanceFailure` and `HangFailure`.
    """
    if case.promise is Promise.P15:  # so that an engine that seeds them cannot hit the state by luck
        torch.rand(1)
        random.random()
    look = world_of if case.promise is Promise.P15 else settings_of
    before = look(trial.subject.model)
    with trial.reporting(workloads[0]):
        engine = trial.build(workloads[0].config)
    try:
        _judge_calls(trial, case, workloads, engine)
    finally:
        trial.close(engine)
    with trial.reporting(workloads[-1]):
        require_same(before, look(trial.subject.model), "while the engine worked")


def _judge_calls(trial: Trial, case: Case, workloads: Sequence[Workload], engine: Engine) -> None:
    traces: list[Sequence[StepRecord]] = []
    outcomes: list[Outcome] = []
    for call, workload in zip(case.calls, workloads, strict=True):
        outcomes.append(trial.run(workload, engine))
        with trial.reporting(workload):
            _judge(trial, case, list(zip(call, workload.requests, strict=True)), outcomes[-1])
            if Capability.TRACING in trial.capabilities:
                done = sum(map(len, traces))
                traces.append(tuple(engine.trace)[done:])  # type: ignore[attr-defined]
                earlier = trial.history.computed_before(engine)
                _check_trace(trial, case, workload, outcomes[-1], traces[-1], earlier)
    with trial.reporting(workloads[-1]):
        _check_events(case, traces, _num_late_steps(trial, workloads, outcomes))
        if case.promise is Promise.P16:
            _check_repeats(workloads, outcomes)


def _check_case_holds(trial: Trial, case: Case) -> None:
    """Raises `CaseError` unless the right answers end as the case expects.

    A foreign checkpoint may repeat a token where the case expects two different ones, which is no
    fault of the engine: there it is only noted.
    """
    for spec, ending in slips(case, trial.oracle):
        text = (
            f"the case is wrong: request {spec.request_id!r} cannot end as expected, for its right "
            f"answer on {trial.subject.name} has {ending}"
        )
        if trial.subject.is_embedded:
            raise spec.place.error(text)
        trial.ledger.note(f"{spec.place}: {text}")


@contextmanager
def _noting(case: CaseNote) -> Iterator[None]:
    try:
        yield
    except ConformanceFailure as error:
        raise ConformanceFailure(error.failure.in_case(case)) from None
    except HangFailure as error:
        raise HangFailure(error.failure.in_case(case)) from None


def _judge(
    trial: Trial, case: Case, asked: list[tuple[RequestSpec, Request]], outcome: Outcome
) -> None:
    check_order([request for _, request in asked], outcome.completions)
    good: list[tuple[Request, Completion]] = []
    for (spec, request), completion in zip(asked, outcome.completions, strict=True):
        was_aborted = completion.finish_reason is FinishReason.ABORTED
        if spec.is_bad:
            require_refused(completion, request, trial.ledger)
        elif spec.expect.finish is FinishReason.ABORTED or (
            was_aborted and spec.aborts and spec.expect.finish is None
        ):
            _check_aborted(trial, case, spec, request, completion)
        else:
            good.append((request, completion))
    findings = completion_findings(
        [r for r, _ in good], [c for _, c in good], trial.oracle, trial.ledger
    )
    require(_counted(each, case) for each in findings)


def _counted(finding: Finding, case: Case) -> Finding:
    """Counts a wrong answer, or a refusal of a good request, for the promise of the case if it
    breaks that promise."""
    is_answer = finding.promise is Promise.P1 and case.promise in ABOUT_ANSWERS
    is_refusal = finding.promise is Promise.P12
    return finding.under(case.promise) if is_answer or is_refusal else finding


def _check_aborted(
    trial: Trial, case: Case, spec: RequestSpec, request: Request, completion: Completion
) -> None:
    name, tokens = spec.request_id, completion.token_ids
    if completion.finish_reason is not FinishReason.ABORTED:
        reason = completion.finish_reason.value
        raise broken(Rule.NOT_ABORTED, name, promise=case.promise, finish_reason=reason)
    limit = len(trial.oracle.expected(request)[0])
    wanted = spec.expect.num_tokens
    if len(tokens) > limit or wanted not in (None, len(tokens)):
        should_have = f"at most {limit}" if wanted is None else str(wanted)
        facts: Facts = {"num_tokens": len(tokens), "got": tokens, "should_have": should_have}
        raise broken(Rule.ABORTED_LENGTH, name, promise=case.promise, **facts)
    require(token_findings(request, completion, trial.oracle, trial.ledger))
    trial.ledger.num_requests += 1
    trial.ledger.num_steps += len(tokens)


def _check_trace(
    trial: Trial,
    case: Case,
    workload: Workload,
    outcome: Outcome,
    records: Sequence[StepRecord],
    earlier: Sequence[Computed],
) -> None:
    """Checks the trace by `batchproof.checks.conduct`; with aborts, which leave no mark in a trace,
    only its end."""
    if workload.aborts:
        last_abort = max(step for _, step in workload.aborts)
        has_token_since = any(
            step >= last_abort and event.token_id is not None for step, event in outcome.events
        )
        # An engine may deliver late: the pass that fed the aborted request came before the abort.
        aborted = {c.request_id for c in outcome.completions if c.finish_reason is FinishReason.ABORTED}
        is_idle_at_end = has_token_since and not any(
            row.request_id in aborted for row in records[-1].rows
        )
        if is_idle_at_end and records[-1].num_free_blocks != records[-1].num_total_blocks:
            free, total = records[-1].num_free_blocks, records[-1].num_total_blocks
            facts: Facts = {"num_free": free, "num_total": total}
            raise broken(Rule.LEFTOVER_BLOCKS, promise=case.promise, **facts)
        return
    delay = trial.scheduling_delay
    require(conduct_findings(workload, outcome, records, trial.capabilities, earlier, delay))


def _num_late_steps(trial: Trial, workloads: Sequence[Workload], outcomes: Sequence[Outcome]) -> int:
    """Returns the steps by which a declared scheduling delay can make the calls longer."""
    ends = (
        is_unforeseen(request, completion)
        for workload, outcome in zip(workloads, outcomes, strict=True)
        for request, completion in zip(workload.requests, outcome.completions, strict=True)
    )
    return trial.scheduling_delay * sum(ends)


def _check_events(case: Case, traces: Sequence[Sequence[StepRecord]], num_late_steps: int) -> None:
    records = [record for each in traces for record in each]
    did_happen = {
        "preemption": happened.has_preemption(records),
        "chunked": happened.has_chunk(records),
        "slot_reuse": happened.has_slot_reuse(records, case.config.max_num_seqs),
        "mixed_step": happened.has_mixed_step(records),
        "prefix_hit": happened.has_prefix_hit(records),
        "acceptance": happened.has_acceptance(records),
        "rejection": happened.has_rejection(records),
    }
    num_steps = len(records)
    for event, did in did_happen.items():
        if event in case.expect.events and not did:
            raise broken(Rule.CASE_EVENT, promise=case.promise, what=event, num_steps=num_steps)
    most = None if case.expect.max_steps is None else case.expect.max_steps + num_late_steps
    if most is not None and num_steps > most:
        raise broken(Rule.MAX_STEPS, promise=case.promise, num_steps=num_steps, most=most)


def _check_repeats(workloads: Sequence[Workload], outcomes: Sequence[Outcome]) -> None:
    """Checks P16: calls with the same requests get the same answers, near-ties included."""
    seen: dict[object, object] = {}
    for workload, outcome in zip(workloads, outcomes, strict=True):
        if any(map(is_drawn, workload.requests)):
            continue
        asked = tuple(
            (r.prompt_token_ids, r.max_new_tokens, r.eos_token_ids, r.sampling)
            for r in workload.requests
        )
        answers: list[object] = [(c.token_ids, str(c.finish_reason)) for c in outcome.completions]
        first = seen.setdefault((asked, workload.arrivals), answers)
        if answers != first:
            raise broken(Rule.REPEATS, first=str(first), then=str(answers))
