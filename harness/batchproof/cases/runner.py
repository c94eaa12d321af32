"""Runs a curated case: one engine for all its calls, every answer judged.

Good requests are judged by the oracle, bad ones must be refused, and aborted ones must return a
beginning of the right answer. The trace must obey its invariants and show the events the case was
written for: a case whose event did not happen proves nothing. It fails, unless the engine may choose
otherwise: then the summary says what was not shown.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

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
from batchproof.cases import schema
from batchproof.cases.schema import Case, RequestSpec
from batchproof.checks import happened
from batchproof.checks.answers import completion_findings, order_findings, token_findings
from batchproof.checks.broken import require
from batchproof.checks.environment import require_same, settings_of, world_of
from batchproof.checks.prefixes import Computed
from batchproof.checks.refusals import event_findings, refusal_findings
from batchproof.checks.trace import is_unforeseen
from batchproof.findings.finding import CaseNote, Facts, Finding, Rule, found
from batchproof.models.catalogue import ModelUnderTest
from batchproof.oracle.choosing import is_drawn, is_malformed
from batchproof.oracle.grammars import automaton
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
    cap = spec.cap
    if isinstance(cap, schema.BeyondContext):
        cap = context_len - len(prompt) + cap.offset
    request = Request(spec.request_id, prompt, cap, sampling=spec.sampling, grammar=spec.grammar)
    limits = Limits.of(subject.model, config)
    reason = limits.refusal(replace(request, grammar=None))  # without an EOS, which a grammar needs
    if reason is None:
        answer = oracle.right_tokens(prompt, cap) if spec.eos else ()
        eos = frozenset(_eos_id(spec, item, prompt, answer) for item in spec.eos)
        request = replace(request, eos_token_ids=eos)
        reason = limits.refusal(request) or _refusal_of_grammar(spec, request)
    if reason is not None and not spec.is_bad:
        raise spec.place.error(
            f"request {spec.request_id!r} is a bad one on {subject.name} ({reason}); "
            f"if that is meant, say expect: {{finish: error}}"
        )
    return request


def _refusal_of_grammar(spec: RequestSpec, request: Request) -> str | None:
    """Returns why the grammar cannot be read. Raises `CaseError` for an EOS within its texts, behind
    which the contract may allow no token at all."""
    grammar = request.grammar
    if grammar is None:
        return None
    if is_malformed(request):
        return f"its {grammar.kind} is malformed, or has no text"
    if inside := sorted(request.eos_token_ids & automaton(grammar).letters):
        rule = f"stands in texts of its {grammar.kind}: choose an id that stands in none"
        raise spec.place.error(f"eos {inside[0]} of request {request.request_id!r} {rule}")
    return None


def _prompt_token_ids(
    prompt: schema.Prompt, subject: ModelUnderTest, context_len: int
) -> tuple[int, ...]:
    match prompt:
        case tuple():
            return prompt
        case str():  # an empty text is empty, whatever a tokenizer would add
            return subject.encode(prompt) if prompt else ()
        case schema.RandomPrompt(length, seed):
            if isinstance(length, schema.BeyondContext):
                length = context_len + length.offset
            rng = random.Random(seed)
            return tuple(rng.randrange(subject.vocab_size) for _ in range(length))


def _eos_id(
    spec: RequestSpec, item: int | schema.EosRef, prompt: tuple[int, ...], answer: tuple[int, ...]
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
    slipped = []
    for spec in case.requests:
        finish, num_tokens = spec.finish, spec.num_tokens
        if finish in (FinishReason.ERROR, FinishReason.ABORTED) or (finish, num_tokens) == (None, None):
            continue
        request = request_of(spec, oracle, case.config)
        if not oracle.subject.has_answer(request.prompt_token_ids) or is_drawn(request):
            continue
        token_ids, reason = oracle.expected(request)
        if finish not in (None, reason) or num_tokens not in (None, len(token_ids)):
            slipped.append((spec, f"{len(token_ids)} tokens, and finish {reason}"))
    return slipped


# Promises about the content of answers: a wrong token in their cases breaks them, too, not P1 alone.
ABOUT_ANSWERS = {Promise.P5, Promise.P6, Promise.P7, Promise.P8, Promise.P12, Promise.P13, Promise.P16}


def run_case(trial: Trial, case: Case) -> None:
    """Runs a curated case, with its symbolic prompts made concrete for this model. Raises
    `ConformanceFailure` if the engine breaks a promise, `HangFailure` if it hangs, and `CaseError` if
    the case does not hold on this model."""
    # A constructed model shows a lost key in its tokens; the others show more in their logits.
    wants_logits = trial.has_logits and not case.needs_stepping and trial.subject.oracle is None
    workloads = workloads_of(case, trial.oracle, wants_logits)
    _check_case_holds(trial, case)
    try:
        run_calls(trial, case, workloads)
    except (ConformanceFailure, HangFailure) as error:
        note = CaseNote(case.name, str(case.place), case.why, case.link)
        raise type(error)(replace(error.failure, case=note)) from None


def run_calls(trial: Trial, case: Case, workloads: Sequence[Workload]) -> None:
    """Gives one engine these workloads, one for each call of the case, and judges them as the case
    says. Raises `ConformanceFailure` and `HangFailure`."""
    workloads = [replace(each, config=trial.fitted(each.config)) for each in workloads]
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
    records: list[StepRecord] = []
    outcomes: list[Outcome] = []
    for call, workload in zip(case.calls, workloads, strict=True):
        outcomes.append(trial.run(workload, engine))
        new = trial.trace_of(engine)[len(records) :]
        records += new
        with trial.reporting(workload):
            earlier = trial.history.of(engine).computed_before
            in_trace = _trace_findings(trial, case, workload, outcomes[-1], new, earlier)
            require(chain(_answer_findings(trial, case, call, workload, outcomes[-1]), in_trace))
    with trial.reporting(workloads[-1]):
        num_late_steps = _num_late_steps(trial, workloads, outcomes)
        require(_event_findings(trial, case, records, num_late_steps))
        if case.promise is Promise.P16:
            require(_repeat_findings(workloads, outcomes))


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


def _answer_findings(
    trial: Trial, case: Case, call: schema.Call, workload: Workload, outcome: Outcome
) -> Iterator[Finding]:
    given = outcome.completions
    disorder = [*order_findings(workload.requests, given)]
    yield from disorder
    if disorder:
        return
    names = [request.request_id for request in workload.requests]
    good: list[tuple[Request, Completion]] = []
    for spec, request, completion in zip(call, workload.requests, given, strict=True):
        may_be_aborted = bool(spec.aborts) and spec.finish is None
        was_aborted = completion.finish_reason is FinishReason.ABORTED
        if spec.is_bad:
            yield from refusal_findings(completion, request, trial.ledger)
            is_refused = completion.finish_reason is FinishReason.ERROR
            if is_refused and workload.needs_stepping and names.count(request.request_id) == 1:
                yield from event_findings(outcome.events, request.request_id)
        elif spec.finish is FinishReason.ABORTED or (was_aborted and may_be_aborted):
            yield from _aborted_findings(trial, case, spec, request, completion)
        else:
            good.append((request, completion))
    requests, completions = [each for each, _ in good], [each for _, each in good]
    for finding in completion_findings(requests, completions, trial.oracle, trial.ledger):
        yield _counted(finding, case)


def _counted(finding: Finding, case: Case) -> Finding:
    """Counts a wrong answer, or a refusal of a good request, for the promise of the case if it
    breaks that promise."""
    is_answer = finding.promise is Promise.P1 and case.promise in ABOUT_ANSWERS
    is_refusal = finding.promise is Promise.P12
    return finding.under(case.promise) if is_answer or is_refusal else finding


def _aborted_findings(
    trial: Trial, case: Case, spec: RequestSpec, request: Request, completion: Completion
) -> Iterator[Finding]:
    name, tokens = spec.request_id, completion.token_ids
    if completion.finish_reason is not FinishReason.ABORTED:
        reason = completion.finish_reason.value
        yield found(Rule.NOT_ABORTED, name, promise=case.promise, finish_reason=reason)
        return
    cap = request.max_new_tokens
    limit = cap if is_drawn(request) else len(trial.oracle.expected(request)[0])
    wanted = spec.num_tokens
    if len(tokens) > limit or wanted not in (None, len(tokens)):
        should_have = f"at most {limit}" if wanted is None else str(wanted)
        facts: Facts = {"num_tokens": len(tokens), "got": tokens, "should_have": should_have}
        yield found(Rule.ABORTED_LENGTH, name, promise=case.promise, **facts)
    yield from token_findings(request, completion, trial.oracle, trial.ledger)
    trial.ledger.num_requests += 1
    trial.ledger.num_steps += len(tokens)


def _trace_findings(
    trial: Trial,
    case: Case,
    workload: Workload,
    outcome: Outcome,
    records: Sequence[StepRecord],
    earlier: Sequence[Computed],
) -> Iterator[Finding]:
    """Yields what `batchproof.checks.conduct` finds; with aborts, which leave no mark in a trace, only
    blocks that are left at its end."""
    if Capability.TRACING not in trial.capabilities:
        return
    if not workload.aborts:
        yield from trial.conduct_findings(workload, outcome, records, earlier)
        return
    last_abort = max(step for _, step in workload.aborts)
    has_token_since = any(
        step >= last_abort and event.token_id is not None for step, event in outcome.events
    )
    # An engine may deliver late: the pass that fed the aborted request came before the abort.
    aborted = {c.request_id for c in outcome.completions if c.finish_reason is FinishReason.ABORTED}
    if has_token_since and not any(row.request_id in aborted for row in records[-1].rows):
        free, total = records[-1].num_free_blocks, records[-1].num_total_blocks
        if free != total:
            facts: Facts = {"num_free": free, "num_total": total}
            yield found(Rule.LEFTOVER_BLOCKS, promise=case.promise, **facts)


def _num_late_steps(trial: Trial, workloads: Sequence[Workload], outcomes: Sequence[Outcome]) -> int:
    """Returns the steps by which a declared scheduling delay can make the calls longer."""
    ends = (
        is_unforeseen(request, completion)
        for workload, outcome in zip(workloads, outcomes, strict=True)
        for request, completion in zip(workload.requests, outcome.completions, strict=True)
    )
    return trial.scheduling_delay * sum(ends)


def _event_findings(
    trial: Trial, case: Case, records: Sequence[StepRecord], num_late_steps: int
) -> Iterator[Finding]:
    counts = happened.happened_in(records)
    did_happen = {
        "preemption": counts[happened.PREEMPTED] > 0,
        "chunked": counts[happened.CHUNKS] > 0,
        "slot_reuse": happened.has_slot_reuse(records, case.config.max_num_seqs),
        "mixed_step": happened.has_mixed_step(records),
        "prefix_hit": counts[happened.HITS] > 0,
        "acceptance": counts[happened.ACCEPTED] > 0,
        "rejection": counts[happened.REJECTED] > 0,
    }
    num_steps = len(records)
    for event, did in did_happen.items():
        if event not in case.events:
            continue
        what = f"{event} in a case"
        if what in happened.OWN_CHOICE:
            trial.must_show(what, did)
        elif not did:
            yield found(Rule.CASE_EVENT, promise=case.promise, what=event, num_steps=num_steps)
    most = None if case.max_steps is None else case.max_steps + num_late_steps
    if most is not None and num_steps > most:
        yield found(Rule.MAX_STEPS, promise=case.promise, num_steps=num_steps, most=most)


def _repeat_findings(workloads: Sequence[Workload], outcomes: Sequence[Outcome]) -> Iterator[Finding]:
    """Yields breaks of P16: calls with the same requests get the same answers, near-ties included."""
    seen: dict[object, object] = {}
    for workload, outcome in zip(workloads, outcomes, strict=True):
        if any(map(is_drawn, workload.requests)):
            continue
        asked = tuple(replace(each, request_id="") for each in workload.requests)
        answers: list[object] = [(c.token_ids, str(c.finish_reason)) for c in outcome.completions]
        first = seen.setdefault((asked, workload.arrivals), answers)
        if answers != first:
            yield found(Rule.REPEATS, first=str(first), then=str(answers))
